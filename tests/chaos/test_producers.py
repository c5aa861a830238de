"""Two producers on the same files."""

import signal
from collections.abc import Callable

import pytest

from tests.chaos.fleet import Fleet, until

ROWS = 20_000


@pytest.mark.timeout(300)
def test_two_producers_of_which_one_is_killed_half_way_put_in_each_row_once(
    fleet: Callable[..., Fleet], note: Callable[..., None],
) -> None:
    struck = fleet()
    plan = struck.plan(ROWS)
    assert struck.spawn("-m", "ops", "migrate").wait(60) == 0, struck.rig.tail()
    first, second = (struck.spawn("-m", "ops", "enqueue", "--plan", plan) for _ in range(2))
    until(lambda: struck.query("select count(*) from sample")[0][0] > ROWS // 10, 60, "the first rows")
    first.send_signal(signal.SIGKILL)
    first.wait(10)
    put_in = struck.query("select count(*) from sample")[0][0]
    assert second.wait(120) == 0, struck.rig.tail()
    keys = [key for (key,) in struck.query("select key from sample")]
    assert put_in < ROWS, "killed too late"
    assert sorted(keys) == sorted(f"B1-{i}" for i in range(ROWS))
    assert struck.query("select samples from dataset") == [(ROWS,)]
    note("producers: two on the same 20,000 rows, one killed half way", "each row once",
         f"{len(set(keys)):,} samples, doubled {len(keys) - len(set(keys))}; one was killed at {put_in:,} rows")
