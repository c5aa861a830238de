"""What a worker's memory does over a hundred thousand samples."""

from collections.abc import Iterator
from time import monotonic, sleep

from ops.bench.mill import Load, Mill, running
from ops.bench.report import table

SAMPLES, STEPS = 100_000, 10
STALLED_S = 60.0


def measure(samples: int = SAMPLES) -> str:
    with running(Load(1_000, 0, {"B1": samples}, (0.5, 3.0), "kimi-k2.5", tokens=300)) as mill:
        rows = [[done, mill.mark().parts["short"].rss_mb] for done in _passed(mill, samples)]
    return table(["samples answered", "worker's RSS MB"], rows)


def _passed(mill: Mill, samples: int) -> Iterator[int]:
    """How many are answered, each time a further tenth is. AssertionError when for a minute none was."""
    done, since = 0, monotonic()
    for step in range(1, STEPS + 1):
        while done < samples * step // STEPS:
            sleep(0.5)
            seen = mill.simulator.summary()["complete"]
            since = monotonic() if seen > done else since
            assert monotonic() - since < STALLED_S, mill.rig.tail()
            done = seen
        yield done
