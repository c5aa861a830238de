"""How long the other side asks us to wait. Hints stand in five places and come in four forms; the longest one counts."""

import math
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime

DAY_S = 86_400.0


def hint_s(headers: Mapping[str, str], hints: Mapping[str, str], now: float) -> float | None:
    """Seconds from `now` (epoch; the server's own Date is preferred), None without a usable hint. Never negative."""
    date = _date(headers.get("date", ""))
    found = [s for s in _all(headers, hints, date if date is not None else now) if s > 0]
    return min(max(found), 366 * DAY_S) if found else None


def names_a_limit(headers: Mapping[str, str], hints: Mapping[str, str]) -> bool:
    """Whether the limit is the account's own, as X-RateLimit fields say, and not one provider's."""
    return any(name.startswith("x-ratelimit") for name in (*headers, *hints))


def _all(headers: Mapping[str, str], hints: Mapping[str, str], now: float) -> Iterator[float]:
    for source in (headers, hints):
        for name in ("retry-after", "retry_after"):
            if name in source:
                yield _after(source[name], now)
        if "retry-after-ms" in source:
            yield _number(source["retry-after-ms"]) / 1000
        if "x-ratelimit-reset" in source:
            yield _reset(source["x-ratelimit-reset"], now)


def _after(value: str, now: float) -> float:
    seconds = _number(value)
    if seconds:
        return seconds
    date = _date(value)
    return date - now if date is not None else 0.0


def _reset(value: str, now: float) -> float:
    """Epoch milliseconds, epoch seconds, or seconds from now: the size tells."""
    number = _number(value)
    if number > 1e11:
        return number / 1000 - now
    return number - now if number > 1e9 else number


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return 0.0
    return number if math.isfinite(number) else 0.0


def _date(text: str) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
