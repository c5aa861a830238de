"""From a pilot to the whole."""

from models.plan import DatasetPlan, LanePlan
from models.states import Lane
from models.store.totals import DatasetTotals
from ops.forecasting import outlook


def pilot(**changes: object) -> DatasetTotals:
    facts: dict[str, object] = {
        "id": 1, "name": "B1", "state": "open", "closed_reason": None, "samples": 50, "queued": 0, "running": 0, "done": 48,
        "failed": 2, "token_budget": None, "stored_tokens": 48_000, "useful_tokens": 24_000, "billed_tokens": 60_000,
        "reserved_tokens": 0, "margin_tokens": 0, "money_budget_usd": None, "spent_usd": 0.1, "reserved_usd": 0.0, **changes}
    return DatasetTotals(**facts)  # type: ignore[arg-type]


def plan(**changes: object) -> DatasetPlan:
    return DatasetPlan(**{  # type: ignore[arg-type]
        "profile": "smollm2", "model": "m", "account": "a", "short": LanePlan(max_tokens=2_000, concurrency=100),
        "long": LanePlan(max_tokens=4_000, concurrency=10), **changes})


CALLS = {Lane.SHORT: 1_000.0, Lane.LONG: 200.0}


def test_the_whole_is_so_many_times_the_pilot_and_its_slower_lane_decides_its_time() -> None:
    look = outlook(pilot(), CALLS, 5_000, plan())
    assert look is not None
    assert (look.samples, look.rows, look.useful_rows, look.tokens, look.by) == (5_000, 4_800, 2_400, 4_800_000, "prompts")
    assert (round(look.usd, 6), look.seconds) == (10.0, 2_000.0)


def test_the_budget_that_is_used_up_first_ends_it() -> None:
    look = outlook(pilot(), CALLS, 5_000, plan(token_budget=480_000, money_budget_usd=2.0))
    assert look is not None
    assert (look.by, look.rows, look.tokens, round(look.usd, 6)) == ("budget", 480, 480_000, 1.0)
    look = outlook(pilot(), CALLS, 5_000, plan(token_budget=480_000, money_budget_usd=0.5))
    assert look is not None
    assert (look.by, look.rows) == ("money", 240)


def test_a_pilot_without_an_answer_says_nothing() -> None:
    assert outlook(pilot(done=0, failed=0), {}, 5_000, plan()) is None
