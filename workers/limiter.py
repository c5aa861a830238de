"""An account's slots as one worker uses them: the rule of `limit`, shared with the fleet through `shared`.

A worker with something to say reports and is granted slots about every 0.15 s; no call of its own touches Redis. While
Redis is away each worker goes on with its part of the limit and its own copy of the rule.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from enum import StrEnum
from typing import Any

import structlog
from redis.asyncio import Redis

from models.errors import BrokerAway
from workers.limit import LEASE_S, Limit, Report
from workers.shared import Shared

log = structlog.get_logger(__name__)

SYNC_S = 0.15
IDLE_S = LEASE_S / 5        # with nothing to say, still often enough to keep the lease
ACCEPTED_AFTER_S = 2.0      # a call that was not refused for so long was let in
ASK_AGAIN_S = 3.0           # for Redis, while it is away
START = 50


class Outcome(StrEnum):
    """How a call went, as far as the account's limit is concerned."""

    OK = "ok"
    REFUSED = "refused"     # 429 and its like: too much at once
    BROKEN = "broken"       # 5xx, no connection
    NONE = "none"           # says nothing: never called, cancelled, halted


class Limiter:
    """The slots of one worker at one account. A slot is acquired and released by the same asyncio task.

    start: calls at once before anything is known of the account (None: 50); `max_in_flight` or more skips slow start.
    """

    def __init__(self, redis: Redis, account: str, worker: str, max_in_flight: int, *, prefix: str = "draftmill:",
                 start: int | None = None, clock: Callable[[], float] | None = None) -> None:
        self._account, self._worker, self._most = account, worker, max_in_flight
        self._clock = clock or time.monotonic
        self._shared = Shared(redis, prefix, account, clock)
        self._fleet = Limit.new(START if start is None else start, max_in_flight)   # as last seen in Redis
        self._alone: Limit | None = None                                            # while Redis is away
        self._ask_at = 0.0
        self._part, self._settled_at = 0, 0.0   # what this worker keeps to until all others are back too
        self._tally = Report(worker)
        self._in_flight = self._queued = 0
        self._waiting: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._began: dict[asyncio.Task[Any] | None, float] = {}   # every call in flight
        self._young: dict[asyncio.Task[Any] | None, float] = {}   # those not yet known to be accepted, oldest first
        self._stir = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def acquire(self, deadline_s: float) -> bool:
        """Wait for a slot; False when none came in time."""
        slot = asyncio.get_running_loop().create_future()
        self._waiting[slot] = None
        self._stir.set()
        try:
            async with asyncio.timeout(deadline_s):
                await slot
        except (TimeoutError, asyncio.CancelledError) as ended:
            self._withdraw(slot)
            if isinstance(ended, TimeoutError):
                return False
            raise
        me = asyncio.current_task()
        self._began[me] = self._young[me] = self._clock()
        return True

    def release(self, outcome: Outcome) -> None:
        """Give the slot back and tell how its call went."""
        me = asyncio.current_task()
        age_s, young = self._clock() - self._began.pop(me), self._young.pop(me, None) is not None
        self._in_flight -= 1
        if outcome is Outcome.OK:
            self._tally.answer(age_s, accepted=young)
        elif outcome is not Outcome.NONE:
            self._tally.fail(age_s, refused=outcome is Outcome.REFUSED)
        self._stir.set()

    def queue_signal(self, queued: int) -> None:
        """How many of this worker's calls the engine now keeps waiting for their first token."""
        self._queued = queued

    async def pause(self, reason: str, probe_every_s: float = 20.0) -> None:
        """Halt the account for the fleet: one call per `probe_every_s` until one is answered or somebody resumes it."""
        self._tally.halt = reason, probe_every_s
        self._stir.set()

    def state(self) -> dict[str, Any]:
        """What this worker knows of the account, JSON-ready."""
        known = self._alone or self._fleet
        return {**known.described(), "account": self._account, "alone": self._alone is not None,
                "mine": self._in_flight, "waiting": len(self._waiting)}

    @property
    def waiting(self) -> int:
        """Calls of this worker that wait for a slot."""
        return len(self._waiting)

    @property
    def spare(self) -> int:
        """How many more calls the account may take now, as far as is known here; below 1 when it is full or shut."""
        return (self._alone or self._fleet).spare - len(self._waiting)

    @property
    def halted(self) -> bool:
        return bool((self._alone or self._fleet).halted)

    def start(self) -> None:
        """Report and be granted slots until `close`."""
        self._task = asyncio.create_task(self.run())

    async def close(self) -> None:
        """The lease of this worker ends by itself."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def run(self) -> None:
        while True:
            await self.sync()
            await asyncio.sleep(SYNC_S)
            if not (self._waiting or self._young):
                await self._stirred()
            self._stir.clear()

    async def sync(self) -> None:
        """Report once, and hand out what is granted. Never raises for Redis."""
        for _ in range(await self._granted(self._report())):
            self._hand_out()

    # one round

    def _report(self) -> Report:
        report, self._tally, now = self._tally, Report(self._worker), self._clock()
        report.in_flight, report.want, report.queued = self._in_flight, len(self._waiting), self._queued
        while self._young and now - (began := next(iter(self._young.values()))) >= ACCEPTED_AFTER_S:
            del self._young[next(iter(self._young))]
            report.accept(now - began)
        return report

    async def _granted(self, report: Report) -> int:
        if self._alone is not None or self._clock() < self._settled_at:
            report.want = min(report.want, max(0, self._part - self._in_flight))
        if self._alone is None or self._clock() >= self._ask_at:
            try:
                self._fleet, grant = await self._shared.change(lambda limit, now: self._step(limit, report, now))
            except BrokerAway as error:
                self._ask_at = self._clock() + ASK_AGAIN_S
                self._leave_fleet(error)
            else:
                self._rejoin_fleet()
                return grant
        assert self._alone is not None
        grant = self._alone.step(report, self._shared.now())
        self._part = int(self._alone.limit)
        return grant

    def _step(self, limit: Limit | None, report: Report, now: float) -> tuple[Limit, int]:
        limit = limit or self._fleet.copy()   # Redis was emptied: whoever comes first remembers for all
        limit.most = self._most
        return limit, limit.step(report, now)

    def _leave_fleet(self, error: BrokerAway) -> None:
        if self._alone is None:
            log.warning("limits_alone", account=self._account, cause=str(error))
            self._alone = self._fleet.alone(self._worker)
            self._part = int(self._alone.limit)

    def _rejoin_fleet(self) -> None:
        if self._alone is not None:
            log.info("limits_shared_again", account=self._account)
            self._alone, self._settled_at = None, self._clock() + 2 * ASK_AGAIN_S

    def _hand_out(self) -> None:
        while self._waiting:
            slot, _ = self._waiting.popitem(last=False)
            if not slot.done():
                slot.set_result(None)
                self._in_flight += 1
                return

    def _withdraw(self, slot: asyncio.Future[None]) -> None:
        self._waiting.pop(slot, None)
        if slot.done() and not slot.cancelled():   # granted at this very moment
            self._in_flight -= 1
            self._stir.set()

    async def _stirred(self) -> None:
        try:
            async with asyncio.timeout(IDLE_S):
                await self._stir.wait()
        except TimeoutError:
            pass
