"""`draftmill limits`: what each account takes now, and a person's word on it. Workers follow within a fraction of a second."""

import asyncio
from typing import Any

from redis.asyncio import Redis
from rich.table import Table

from models.errors import SettingsError
from models.settings import Settings
from ops.tables import count
from workers.shared import Limits


def states(settings: Settings) -> dict[str, dict[str, Any]]:
    """By account, as `workers.limit.Limit.described`. Raises BrokerAway."""
    return asyncio.run(_with(settings, "states"))


def override(settings: Settings, account: str, limit: int | None) -> None:
    """Fix an account's limit, or (None) leave it to be learnt again."""
    asyncio.run(_with(settings, "override", account, limit))


def resume(settings: Settings, account: str) -> None:
    """End a pause now instead of at the next probe."""
    asyncio.run(_with(settings, "resume", account))


async def _with(settings: Settings, verb: str, *args: Any) -> Any:
    if settings.redis_url is None:
        raise SettingsError(cause="no Redis: set DRAFTMILL_REDIS_URL, or start `draftmill up` in this folder")
    redis = Redis.from_url(settings.redis_url.get_secret_value(), socket_timeout=5, socket_connect_timeout=5)
    try:
        limits = Limits(redis, settings.key_prefix)
        if args and args[0] not in (known := await limits.states()):
            raise SettingsError(cause=f"no account {args[0]!r} is in use, only {', '.join(known) or 'none at all'}")
        return await getattr(limits, verb)(*args)
    finally:
        await redis.aclose()


def table(found: dict[str, dict[str, Any]]) -> Table:
    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for name in ("account", "in flight", "limit", "ceiling", "most", "queued", "state"):
        shown.add_column(name, justify="left" if name in ("account", "state") else "right", no_wrap=True)
    for account, s in found.items():
        state = f"paused: {s['halted']}" if s["halted"] else "probing" if s["probing"] else "fixed" if s["fixed"] else "open"
        shown.add_row(account, count(s["in_flight"]), count(s["limit"]), count(s["ceiling"]), count(s["max_in_flight"]),
                      count(s["queued"]), state)
    return shown
