"""More worker processes, and many datasets: rows a second, who gets how much."""

from collections.abc import Sequence
from dataclasses import dataclass
from time import sleep

from ops.bench.mill import Load, per_sample, running
from ops.bench.report import table

SLOTS, ANSWER_S, WATCHED_S = 250, 5.0, 20.0


@dataclass(frozen=True, slots=True)
class Scaled:
    workers: int
    per_s: float
    cores: float                 # of all parts together, the simulator included
    cpu_ms: float                # a sample, of the workers
    calls: Sequence[int]         # by worker, in the time watched


def measure(workers: int) -> Scaled:
    slots = workers * SLOTS
    load = Load(slots, 0, {"B1": int(slots * (3 + 2 * WATCHED_S / ANSWER_S))}, (ANSWER_S, ANSWER_S), "kimi-k2.5",
                short_workers=workers)
    with running(load) as mill:
        mill.filled(0.9)
        sleep(ANSWER_S)
        before, taken = mill.mark(), _calls(mill.rig.query("select worker_id, count(*) from attempt group by 1"))
        sleep(WATCHED_S)
        after, now = mill.mark(), _calls(mill.rig.query("select worker_id, count(*) from attempt group by 1"))
    seconds = after.at - before.at
    cpu_s = sum(after.parts[n].cpu_s - before.parts[n].cpu_s for n in after.parts)
    return Scaled(workers, (after.complete - before.complete) / seconds, cpu_s / seconds, per_sample(before, after)["short"],
                  [now[w] - taken.get(w, 0) for w in now])


def _calls(rows: Sequence[tuple[int, int]]) -> dict[int, int]:
    return dict(rows)


def shown(found: Sequence[Scaled]) -> str:
    one = found[0].per_s / found[0].workers
    return table(["workers", "in flight", "samples/s", "of linear %", "cores in use", "workers ms a sample", "calls by worker"], [
        [s.workers, s.workers * SLOTS, s.per_s, 100 * s.per_s / one / s.workers, s.cores, s.cpu_ms,
         f"{min(s.calls)} to {max(s.calls)}"] for s in found])


def fairness(datasets: int = 40, slots: int = 400) -> str:
    """One dataset is thirty times as large as the others."""
    rows = {f"D{n:02}": 6_000 if n == 0 else 200 for n in range(datasets)}
    with running(Load(slots, 0, rows, (4.0, 8.0), tokens=300)) as mill:
        mill.filled(0.9)
        shares = list[list[int]]()
        for _ in range(5):
            sleep(2.0)
            shares.append([int(n) for (n,) in mill.rig.query("select running from dataset order by name")])
    mean = [sum(column) / len(column) for column in zip(*shares, strict=True)]
    return (f"{datasets} datasets share {slots} slots of one worker, the first with 6,000 samples, the others with 200: on "
            f"average {mean[0]:.1f} in flight of the first, {min(mean[1:]):.1f} to {max(mean[1:]):.1f} of the others "
            f"({slots / datasets:.0f} is even).")
