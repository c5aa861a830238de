"""Held and cost: one short and one long worker against a simulator that counts what is in flight.

CPU is the whole of a process over the time when all is in flight, divided by the answers of that time.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ops.bench.mill import FULL_WITHIN_S, VOCABULARIES, Load, Mark, Mill, per_sample, running
from ops.bench.report import table

LANE = {"short": 2_000, "long": 500}


@dataclass(frozen=True, slots=True)
class Held:
    load: Load
    full_after_s: int | None       # seconds from the first call until 99% were in flight; None: never
    least: int                     # in flight, from then on
    samples: int
    per_s: float
    cpu_ms: dict[str, float]
    rss_mb: dict[str, float]
    lags_ms: Sequence[int]         # of the workers' loops, told once a second
    token_wait_ms: int


def measure(load: Load, seconds: float) -> Held:
    """seconds: how long it is watched once it is full, or after FULL_WITHIN_S if it never is."""
    with running(load) as mill:
        mill.filled(0.99)
        before = mill.mark()
        counts, lags, waits = _watched(mill, seconds)
        after = mill.mark()
        series = mill.in_flight()
    return _held(load, series, min(counts), before, after, lags, max(waits))


def _watched(mill: Mill, seconds: float) -> tuple[list[int], list[int], list[int]]:
    """In flight each second, and what the workers told."""
    counts, lags, waits, end = list[int](), list[int](), [0], time.monotonic() + seconds
    while time.monotonic() < end or not counts:
        time.sleep(1.0)
        counts.append(mill.simulator.summary()["in_flight"])
        for facts in mill.facts().values():
            lags.append(facts.get("lag_ms", 0))
            waits.append(facts.get("token_wait_ms", 0))
    return counts, lags, waits


def _held(load: Load, series: list[int], least: int, before: Mark, after: Mark, lags_ms: Sequence[int],
          wait_ms: int) -> Held:
    wanted = 0.99 * (load.short + load.long)
    full = next((n for n, count in enumerate(series) if count >= wanted), None)
    done = after.complete - before.complete
    return Held(load, full, least, done, done / (after.at - before.at), per_sample(before, after),
                {n: u.rss_mb for n, u in after.parts.items()}, lags_ms, wait_ms)


def shown(found: list[Held]) -> str:
    head = ["answers take", "profile", "in flight", "full after s", "least after that", "samples/s", "RSS MB: short", "long"]
    rows = [[f"{h.load.latency[0]:g} to {h.load.latency[1]:g} s", h.load.profile, h.load.short + h.load.long,
             "never" if h.full_after_s is None else h.full_after_s, h.least, h.per_s, h.rss_mb["short"], h.rss_mb["long"]]
            for h in found]
    return table(head, rows)


def shown_cost(found: list[Held]) -> str:
    head = ["answers take", "profile", "in flight", "samples", "samples/s", "workers ms", "PostgreSQL ms", "Redis ms",
            "simulator ms", "loop lag ms: half", "p99", "most", "token wait ms"]
    return table(head, [[
        f"{h.load.latency[0]:g} to {h.load.latency[1]:g} s", h.load.profile, h.load.short + h.load.long, h.samples, h.per_s,
        h.cpu_ms["short"] + h.cpu_ms["long"], h.cpu_ms["PostgreSQL"],
        h.cpu_ms["Redis"], h.cpu_ms["simulator"], *_spread(h.lags_ms), h.token_wait_ms] for h in found])


def _spread(lags_ms: Sequence[int]) -> tuple[int, int, int]:
    ordered = sorted(lags_ms) or [0]
    return ordered[len(ordered) // 2], ordered[(len(ordered) - 1) * 99 // 100], ordered[-1]


def load(profile: str, latency: tuple[float, float], seconds: float, share: float = 1.0) -> Load:
    """As many rows as last `seconds` beyond filling; share: of the 2,000 and 500."""
    short, long = round(LANE["short"] * share), round(LANE["long"] * share)
    rows = int((short + long) * (2.5 + 1.3 * (seconds + FULL_WITHIN_S) / (sum(latency) / 2)))
    return Load(short, long, {"B1": rows}, latency, profile)


def main() -> None:
    parser = argparse.ArgumentParser("ops.bench.held", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--latency", type=float, nargs=2, default=(2.0, 10.0))
    parser.add_argument("--profile", default="smollm2")
    parser.add_argument("--tokenizers", type=Path, default=VOCABULARIES)
    given = parser.parse_args()
    found = [measure(load(given.profile, tuple(given.latency), given.seconds), given.seconds)]
    print(shown(found), shown_cost(found), sep="\n\n")


if __name__ == "__main__":
    main()
