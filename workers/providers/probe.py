"""Whether an endpoint answers as its account says, without asking for an answer and so without paying."""

from dataclasses import dataclass

from workers.providers.base import Exchange, Fault, Limits
from workers.providers.document import load
from workers.providers.http import Door

LIMITS = Limits(total_s=10.0)
LITTLE_USD = 1.0


@dataclass(frozen=True, slots=True)
class Wrong:
    """what: goes on from the URL. remedy: what to do."""

    what: str
    remedy: str


async def probe(kind: str, base_url: str, key: str | None) -> Wrong | None:
    """None when it answers. Takes ten seconds at most for each of two requests."""
    hosted = kind == "openrouter"
    door = Door(base_url if hosted else base_url.rstrip("/").removesuffix("/v1"), lambda: key, 2)
    try:
        listed = await door.get("/models" if hosted else "/v1/models", LIMITS)
        if listed.fault is not None:
            late = listed.fault in (Fault.DEADLINE, Fault.IDLE)
            return Wrong("does not answer in time" if late else f"cannot be reached ({listed.fault.value})",
                         "is base_url right, and is the server up?")
        if listed.status in (401, 403):
            return _refuses_key(listed)
        if listed.status != 200 or not _is_listing(listed.body):
            usual = "https://openrouter.ai/api/v1" if hosted else "http://HOST:PORT/v1"
            return Wrong(f"has no list of models (HTTP {listed.status})", f"base_url looks like {usual}")
        return await _account(door) if hosted and key else None
    finally:
        await door.aclose()


async def _account(door: Door) -> Wrong | None:
    own = await door.get("/key", LIMITS)
    if own.status in (401, 403):
        return _refuses_key(own)
    try:
        left = load(own.body)["data"]["limit_remaining"]
    except (ValueError, KeyError, TypeError):
        return None
    if isinstance(left, int | float) and left < LITTLE_USD:
        return Wrong(f"has ${left:.2f} of the key's limit left", "add credit, or raise the key's limit")
    return None


def _refuses_key(exchange: Exchange) -> Wrong:
    return Wrong(f"refuses the key (HTTP {exchange.status})", "put a valid key into the key file; it is read anew all the time")


def _is_listing(body: bytes) -> bool:
    try:
        document = load(body)
    except ValueError:
        return False
    return isinstance(document, dict) and isinstance(document.get("data") or document.get("models"), list)
