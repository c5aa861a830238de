"""Where the fleet keeps its limits: one small JSON value per account in Redis, changed by compare-and-swap.

The rule itself stays in Python, in one place (`limit`), also for a worker that cannot reach Redis.
"""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.exceptions import RedisError

from models.errors import BrokerAway
from workers.limit import Limit

SCRIPT = Path(__file__).with_name("limiter.lua").read_text(encoding="ascii")
TRIES = 20             # against workers that write at the same moment
DEADLINE_S = 1.0
KEPT_S = 7 * 24 * 3600
ANY = 1_000_000        # of an account that no worker has told the maximum of


class Shared:
    """One account's state. Times are Redis' clock, so that workers' own clocks do not matter; `clock` is for tests."""

    def __init__(self, redis: Redis, prefix: str, account: str, clock: Callable[[], float] | None = None) -> None:
        self._script, self._key = redis.register_script(SCRIPT), f"{prefix}limit:{account}"
        self._clock, self._simulated = clock or time.monotonic, clock is not None
        self._ahead_s = 0.0
        self._seen = b""

    def now(self) -> float:
        return self._clock() + self._ahead_s

    async def change(self, change: Callable[[Limit | None, float], tuple[Limit, int]]) -> tuple[Limit, int]:
        """`change` gets the state (None: there is none) and the time, and is called again when another was quicker.

        Raises BrokerAway within a second.
        """
        try:
            async with asyncio.timeout(DEADLINE_S):
                for _ in range(TRIES):
                    limit, result = change(decoded(self._seen), self.now())
                    if await self._swap(msgspec.json.encode(limit)):
                        return limit, result
        except (RedisError, OSError, TimeoutError) as error:
            raise BrokerAway(cause=f"{type(error).__name__}: {error}") from error
        raise BrokerAway(cause=f"{self._key} is written too often")

    async def _swap(self, new: bytes) -> bool:
        done, self._seen, now = await self._script(keys=[self._key], args=[self._seen, new, KEPT_S])
        if not self._simulated:
            self._ahead_s = float(now) - self._clock()
        return bool(done)


class Limits:
    """All accounts' limits, for a person to read and to set. Raises BrokerAway."""

    def __init__(self, redis: Redis, prefix: str) -> None:
        self._redis, self._prefix = redis, prefix

    async def states(self) -> dict[str, dict[str, Any]]:
        """By account, JSON-ready; see `Limit.described`."""
        start = f"{self._prefix}limit:"
        try:
            async with asyncio.timeout(10 * DEADLINE_S):
                keys = sorted([key async for key in self._redis.scan_iter(match=f"{start}*", count=1_000)])
                values = await self._redis.mget(keys) if keys else []
        except (RedisError, OSError, TimeoutError) as error:
            raise BrokerAway(cause=f"{type(error).__name__}: {error}") from error
        found = {key.decode()[len(start):]: decoded(raw) for key, raw in zip(keys, values, strict=True)}
        return {account: limit.described() for account, limit in found.items() if limit}

    async def override(self, account: str, limit: int | None) -> None:
        """Fix an account's limit, whatever its provider says, or leave it to the rule again (None)."""
        def fix(known: Limit | None, _: float) -> tuple[Limit, int]:
            known = known or Limit.new(50, ANY)
            known.fixed = limit
            return known, 0
        await Shared(self._redis, self._prefix, account).change(fix)

    async def resume(self, account: str) -> None:
        """End a pause now."""
        def clear(known: Limit | None, _: float) -> tuple[Limit, int]:
            known = known or Limit.new(50, ANY)
            known.halted, known.streak, known.closed_until = "", 0, 0.0
            return known, 0
        await Shared(self._redis, self._prefix, account).change(clear)


def decoded(raw: Any) -> Limit | None:
    try:
        return msgspec.json.decode(raw, type=Limit) if raw else None
    except msgspec.DecodeError:   # not ours, or of another version; it is written over
        return None
