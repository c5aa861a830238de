"""An account whose hidden capacity changes, found by real workers through a real Valkey: 800, 300, 1,500 at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import sleep

from ops.bench.mill import Load, Mill, running
from ops.bench.report import table

STEPS = ((0, 800), (120, 300), (240, 1_500))
LASTS_S = 360
LATENCY = (5.0, 60.0)
HEAD = ["workers", "start s", "fall: drained s", "steady after that s", "rise s", "steady use %", "refused %",
        "refused % after the fall", "least and most calls of a worker"]


@dataclass(frozen=True, slots=True)
class Found:
    """Times until 85% of the capacity is used; shares are of 1."""

    workers: int
    start_s: int
    drained_s: int
    steady_s: int
    rise_s: int
    used: float
    refused: float
    refused_in_fall: float
    calls: Sequence[int]        # by worker

    def row(self) -> list[object]:
        return [self.workers, self.start_s, self.drained_s, self.steady_s, self.rise_s, 100 * self.used, 100 * self.refused,
                100 * self.refused_in_fall, f"{min(self.calls)}, {max(self.calls)}"]


def measure(workers: int) -> Found:
    load = Load(2_400, 0, {"B1": 16_000}, LATENCY, short_workers=workers, start_at_most=False, tokens=300,
                simulator={"capacity": STEPS[0][1]})
    with running(load) as mill:
        mill.first_call()
        mill.simulator.control(capacity_schedule=[[float(at), n] for at, n in STEPS])
        sleep(LASTS_S + 2)
        calls = [int(n) for (n,) in mill.rig.query("select count(*) from attempt group by worker_id")]
        return _found(workers, mill, calls)


def _found(workers: int, mill: Mill, calls: Sequence[int]) -> Found:
    series = mill.simulator.summary(series=True)["seconds"]
    first = min(s["second"] for s in series)
    by_second = {s["second"] - first: s for s in series}
    seconds = range(min(LASTS_S, max(by_second)))
    used = [min(1.0, by_second.get(t, {}).get("in_flight", 0) / capacity(t)) for t in seconds]
    running_now = [by_second.get(t, {}).get("in_flight", 0) for t in seconds]
    fall, rise = STEPS[1][0], STEPS[2][0]
    drained = next((t for t in seconds if t > fall and running_now[t] <= 1.02 * capacity(t)), rise)
    low = [t for t in range(drained, rise) if used[t] < 0.85]

    def refused(since: int, until: int) -> float:
        part = [by_second[t] for t in range(since, until) if t in by_second]
        return float(sum(s["failed"] for s in part) / max(1, sum(s["calls"] for s in part)))

    return Found(
        workers, next((t for t in seconds if used[t] >= 0.85), LASTS_S), drained - fall, max(low, default=drained) - drained,
        next((t for t in seconds if t >= rise and used[t] >= 0.85), LASTS_S) - rise,
        min(_mean(used[40:fall]), _mean(used[fall + 50:rise]), _mean(used[rise + 45:])),
        refused(0, LASTS_S), refused(fall, rise), calls)


def capacity(second: int) -> int:
    return next(n for at, n in reversed(STEPS) if second >= at)


def _mean(shares: Sequence[float]) -> float:
    return sum(shares) / max(1, len(shares))


def shown(found: Sequence[Found]) -> str:
    return table(HEAD, [f.row() for f in found])
