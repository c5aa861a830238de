"""What a worker's memory does over a hundred thousand samples."""

from ops.bench.mill import Load, Mark, Mill, running
from ops.bench.report import table

STEPS, STEP_S = 10, 300.0


def measure(samples: int) -> str:
    with running(Load(1_000, 0, {"B1": samples}, (0.5, 3.0), "kimi-k2.5", tokens=300)) as mill:
        marks = [_answered(mill, samples * step // STEPS) for step in range(1, STEPS + 1)]
    return table(["samples answered", "worker's RSS MB"], [[mark.complete, mark.parts["short"].rss_mb] for mark in marks])


def _answered(mill: Mill, n: int) -> Mark:
    """How things stand once so many are."""
    mill.rig.wait(lambda: mill.simulator.summary()["complete"] >= n, STEP_S, f"{n} answers")
    return mill.mark()
