"""What the answers in flight will cost: a life table of a dataset's own answers, by size reached so far.

Short answers return first, so any mean of finished ones misleads: 2,000 in flight on a budget of 10M would end at 154%.
Answers in flight are censored observations, so each size bucket counts who finished in it, who was cut in it and who is
in it now. Sizes nobody has lived through yet are priced at the cap. Pure; about 0.1 ms a call.
Source: simulations of 1,400 runs, all within 99 to 101% (docs/decisions/0004).
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

BUCKETS = 20
FIRST_EDGE = 100.0
PRIOR_CAPS = 8      # the weight of "it costs the cap" against what has been seen, in answers


@dataclass(frozen=True, slots=True)
class Counts:
    """Per bucket of `edges(cap)`: how many answers, and their tokens (finished: all; else so far)."""

    n: Sequence[int]
    tokens: Sequence[float]


@dataclass(frozen=True, slots=True)
class Forecast:
    """expected: tokens of one new claim. in_flight: tokens all running ones will have in the end; sd: of that sum."""

    expected: float
    in_flight: float
    sd: float


def edges(cap: float) -> list[float]:
    """BUCKETS + 1 edges: 0, then geometric from 100 to the cap; even steps below a cap of 100."""
    if cap <= FIRST_EDGE:
        return [cap * i / BUCKETS for i in range(BUCKETS + 1)]
    return [0.0] + [FIRST_EDGE * (cap / FIRST_EDGE) ** (i / (BUCKETS - 1)) for i in range(BUCKETS)]


def bucket(tokens: float, bounds: Sequence[float]) -> int:
    return max(0, min(bisect_right(bounds, tokens) - 1, len(bounds) - 2))


def counted(sizes: Sequence[float], bounds: Sequence[float]) -> Counts:
    n, tokens = [0] * (len(bounds) - 1), [0.0] * (len(bounds) - 1)
    for size in sizes:
        b = bucket(size, bounds)
        n[b] += 1
        tokens[b] += size
    return Counts(n, tokens)


def forecast(cap: float, finished: Counts, capped: int, cut: Counts, running: Counts) -> Forecast:
    """finished: answers below the cap; capped: how many reached it; cut: lost or killed ones; running: in flight."""
    bounds = edges(cap)
    hazard, mean, square = _life_table(cap, bounds, finished, capped, cut, running)
    total = variance = left = 0.0
    for b, (n, tokens) in enumerate(zip(running.n, running.tokens, strict=True)):
        if n:
            m, s = _step(hazard[b], max(0.0, bounds[b + 1] - tokens / n), mean[b + 1], square[b + 1])
            total += tokens + n * m
            left += n * m
            variance += n * max(0.0, s - m * m)
    one = mean[0]
    seen = capped + sum(finished.n)
    spread = max(0.0, square[0] - one * one)     # how well the mean itself is known
    sd = math.sqrt(variance + (left / one) ** 2 * spread / (seen + 1)) if one else 0.0
    cap_total = cap * sum(running.n)
    return Forecast(min(one, cap), min(total, max(cap_total, sum(running.tokens))), sd)


def _life_table(cap: float, bounds: Sequence[float], finished: Counts, capped: int, cut: Counts,
                running: Counts) -> tuple[list[float], list[float], list[float]]:
    """(hazard per token, expected remaining tokens, expected square of them) per bucket, from the cap down."""
    last = len(bounds) - 1
    hazard, mean, square = [0.0] * last, [0.0] * (last + 1), [0.0] * (last + 1)
    older = float(capped)
    for b in reversed(range(last)):
        low, width = bounds[b], bounds[b + 1] - bounds[b]
        n = finished.n[b] + cut.n[b] + running.n[b]
        lived = older * width + finished.tokens[b] + cut.tokens[b] + running.tokens[b] - n * low
        older += n
        hazard[b] = (finished.n[b] + 1) / (lived + PRIOR_CAPS * cap)
        mean[b], square[b] = _step(hazard[b], width, mean[b + 1], square[b + 1])
    return hazard, mean, square


def _step(hazard: float, width: float, mean: float, square: float) -> tuple[float, float]:
    """Remaining tokens and their square before a stretch of constant hazard, given both behind it."""
    stay = math.exp(-hazard * width)
    return ((1 - stay) / hazard + stay * mean,
            2 * ((1 - stay) / hazard**2 - width * stay / hazard) + stay * (2 * width * mean + square))
