"""`make bench [ONLY=start|held|cost|memory|scale|queue|limits|budget]`: print tables and write them to docs/performance.md."""

import argparse
import sys
from collections.abc import Callable, Mapping

from ops.bench import budget, held, limits, memory, queue, report, scale, start
from ops.bench.usage import machine

SHORT, USUAL, LONG = (2.0, 10.0), (20.0, 60.0), (600.0, 600.0)
BUSY_SHARE = 0.2        # of the slots, where the cores are shared


def _held(busy: bool) -> str:
    answers = [(LONG, 120)] if busy else [(SHORT, 40), (USUAL, 60), (LONG, 120)]
    return held.shown([held.measure(held.load("kimi-k2.5", latency, seconds), seconds) for latency, seconds in answers])


def _cost(busy: bool) -> str:
    """At full speed, and at the pace of a run whose answers take 20 to 60 s."""
    paces = [(SHORT, 60)] if busy else [(SHORT, 60), (USUAL, 60)]
    return held.shown_cost([held.measure(held.load("kimi-k2.5", latency, seconds, BUSY_SHARE if busy else 1.0), seconds)
                            for latency, seconds in paces])


def _scale(busy: bool) -> str:
    return f"{scale.shown([scale.measure(n) for n in ((1, 2, 4) if busy else (1, 2, 4, 8))])}\n\n{scale.fairness()}"


def _limits(busy: bool) -> str:
    return limits.shown([limits.measure(n) for n in (1, 4)])


def _budget(busy: bool) -> str:
    """At twice the true speed, as many runs at once as leave the cores half idle."""
    shapes, seeds = ["lognormal", "faster", "drift"], range(5 if busy else 20)
    found = [
        *budget.landings(["10M/2000"], shapes, seeds, speed=2.0, lost=0.02, at_once=8),
        *budget.landings(["1M/500"], shapes, seeds, speed=2.0, lost=0.02, at_once=20),
        *budget.landings(["1M/500, strict", "$4/500"], ["lognormal", "drift"], seeds[:5], speed=2.0, lost=0.02, at_once=20),
        *budget.landings(["8 of 2.5M/500"], ["lognormal"], [0], speed=4.0, lost=0.02)]
    return budget.shown(found)


SECTIONS: Mapping[str, Callable[[bool], str]] = {
    "start": lambda busy: start.measure(), "held": _held, "cost": _cost, "scale": _scale,
    "memory": lambda busy: memory.measure(20_000 if busy else 100_000),
    "queue": lambda busy: queue.measure(1_000_000, 40_000), "limits": _limits, "budget": _budget}


def main() -> int:
    """0 when all that was asked for was measured; 1 names what was not."""
    parser = argparse.ArgumentParser("ops.bench", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", choices=SECTIONS, nargs="+", default=list(SECTIONS))
    parser.add_argument("--busy", action="store_true", help="a shared machine: fewer answers a second, fewer workers")
    given, failed = parser.parse_args(), list[str]()
    for name in given.only:
        about = machine()
        try:
            report.write(name, SECTIONS[name](given.busy), about)
        except AssertionError as error:
            failed.append(name)
            print(f"{name}: {error}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
