"""kill -9 of everything at random moments, and the same command again."""

import random
from collections.abc import Callable

import pytest

from tests.chaos.fleet import SEED, Fleet, Outcome

ROWS, IN_FLIGHT = 150, 40
LATEST_S = 14.0      # on a quiet machine such a run takes some 10 s from its start to its end


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("moments", [2, 20])
def test_the_same_command_ends_with_the_same_rows(
    moments: int, fleet: Callable[..., Fleet], undisturbed: Callable[..., dict[str, str]], note: Callable[..., None],
) -> None:
    expected = undisturbed(ROWS)
    chance = random.Random(SEED)
    found = [killed_once(fleet(seed=SEED + i), chance.uniform(0.5, LATEST_S), expected) for i in range(moments)]
    whole = Outcome(*(sum(getattr(o, name) for o in found) for name in Outcome.__slots__[:6]),
                    recovered_s=max(o.recovered_s for o in found))
    note(f"everything: kill -9 at {moments} random moments", "the same command goes on; paid twice only what was in flight",
         whole)
    assert all(o.kept for o in found), found


def killed_once(struck: Fleet, after_s: float, expected: dict[str, str]) -> Outcome:
    struck.start(rows=ROWS, in_flight=IN_FLIGHT)
    struck.rests(after_s)
    struck.kill_everything()
    struck.again()
    if struck.complete < ROWS:
        struck.recovers()
    return struck.ended(expected)
