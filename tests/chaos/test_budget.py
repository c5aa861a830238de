"""Admission respects the budget without a reaper, whose absence only delays tidying."""

import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.fleet import Fleet, check_sums, until

TOKENS, DOLLARS = 60_000, 0.15
ROWS, IN_FLIGHT = 1_000, 50


@pytest.mark.timeout(400)
@pytest.mark.parametrize("budget", [
    pytest.param({"token_budget": TOKENS}, id="tokens", marks=pytest.mark.quick),
    pytest.param({"money_budget_usd": DOLLARS}, id="money")])
def test_a_reaper_dead_at_90_percent_of_the_budget_lets_nothing_pass_it(
    budget: dict[str, Any], fleet: Callable[..., Fleet], note: Callable[..., None],
) -> None:
    struck = fleet(tokens_per_s=150)        # towards the end of a strict budget one call follows the other
    struck.start(rows=ROWS, in_flight=IN_FLIGHT, **budget)
    used = ("select coalesce(max(coalesce(stored_tokens::float8 / token_budget, spent_nusd::float8 / money_budget_nusd)), 0) "
            "from dataset")
    struck.rig.wait(lambda: struck.query(used)[0][0] > 0.9, 120, "90% of the budget")
    [reaper] = struck.rig.pids("ops reaper")
    struck.send(signal.SIGSTOP, reaper)
    until(lambda: struck.in_flight == 0 and struck.rests(5) and struck.in_flight == 0, 120, "the last answers")
    [(share,)] = struck.query(used)
    billed = struck.simulator.summary()
    assert share <= 1
    assert billed["tokens_billed"] <= TOKENS if "token_budget" in budget else billed["cost_usd"] <= DOLLARS
    struck.send(signal.SIGCONT, reaper)
    assert struck.rig.process is not None
    assert struck.rig.process.wait(120) == 0, struck.rig.tail()
    check_sums(struck)
    assert struck.unseen() == 0
    [(share,)] = struck.query(used)
    assert 0.9 < share <= 1
    note(f"reaper: dead at 90% of a budget of {'tokens' if 'token_budget' in budget else 'dollars'}",
         "spending never passes the budget", f"ended at {100 * share:.1f}% of the budget, unseen 0")
