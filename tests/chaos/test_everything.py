"""kill -9 of everything at random moments, and the same command again."""

import random
from collections.abc import Callable

import pytest

from tests.chaos.fleet import SEED, Fleet, Outcome

ROWS, IN_FLIGHT = 150, 40
LATEST_S = 14.0      # on a quiet machine such a run takes some 10 s from its start to its end
MOMENTS = 5          # of one test, so that several processes share the twenty


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", [1, 6, 11, 16])
def test_the_same_command_ends_with_the_same_rows(
    first: int, fleet: Callable[..., Fleet], undisturbed: Callable[..., dict[str, str]], note: Callable[..., None],
) -> None:
    expected = undisturbed(ROWS)
    numbers = range(first, first + MOMENTS)
    found = [killed_once(fleet(seed=SEED + i), random.Random(SEED + i).uniform(0.5, LATEST_S), expected) for i in numbers]
    whole = Outcome(*(sum(getattr(o, name) for o in found) for name in Outcome.__slots__[:6]),
                    recovered_s=max(o.recovered_s for o in found))
    note(f"everything: kill -9 at random moments, {numbers[0]} to {numbers[-1]} of 20",
         "the same command goes on; paid twice only what was in flight", whole)
    assert all(o.kept for o in found), found


def killed_once(struck: Fleet, after_s: float, expected: dict[str, str]) -> Outcome:
    struck.start(rows=ROWS, in_flight=IN_FLIGHT)
    struck.rests(after_s)
    struck.kill_everything()
    struck.again()
    if struck.complete < ROWS:
        struck.recovers()
    return struck.ended(expected)
