"""What a reply says it cost: counts may be strings, zeros or negative, `cost` null; what cannot be believed is None."""

import math
from typing import Any

from models.answer import Usage
from workers.providers.problems import mapping

MAX_COUNT, MAX_USD = 100_000_000, 100_000.0      # of one call; more cannot be believed, nor be stored


def usage_of(usage: Any, flags: set[str]) -> Usage:
    """Adds usage_missing, usage_invalid, usage_inconsistent or cost_missing to `flags`."""
    if not isinstance(usage, dict):
        flags.add("usage_missing")
        return Usage()
    details, cached = mapping(usage.get("completion_tokens_details")), mapping(usage.get("prompt_tokens_details"))
    counts = {name: _count(usage.get(name), flags) for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    prompt, completion, total = counts.values()
    reasoning = _count(details.get("reasoning_tokens"), flags)
    if prompt is None and completion is None and "usage_invalid" not in flags:
        flags.add("usage_missing")
    if None not in (prompt, completion, total) and prompt + completion != total:   # type: ignore[operator]
        flags.add("usage_inconsistent")
    return Usage(prompt, completion, reasoning, _count(cached.get("cached_tokens"), flags), _cost(usage, flags))


def _count(value: Any, flags: set[str]) -> int | None:
    """A believable count: not negative, whole, also as a string of digits. None when absent or not believable."""
    if value is None:
        return None
    number = number_of(value)
    if number is None or not 0 <= number <= MAX_COUNT or number != int(number):
        flags.add("usage_invalid")
        return None
    return int(number)


def _cost(usage: dict[str, Any], flags: set[str]) -> float | None:
    if "cost" not in usage:
        return None
    cost = number_of(usage["cost"])
    if cost is not None and not 0 <= cost <= MAX_USD:
        cost = None
        flags.add("usage_invalid")
    if cost is None:
        if "usage_invalid" not in flags:
            flags.add("cost_missing")
        return None
    return cost


def number_of(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
