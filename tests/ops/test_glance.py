"""What `status` and `run` show in a terminal of 80 columns, and in a pipe."""

import io
from collections.abc import Callable

import pytest
from pydantic import SecretStr
from rich.console import Console

from models.base import connect, transaction
from models.settings import Settings
from models.store import purses
from models.store.totals import DatasetTotals
from ops import glance
from tests.ops.board import seeded


@pytest.fixture(scope="module")
def fleet(new_database: Callable[[], str]) -> str:
    url = new_database()
    seeded.fill(url)
    engine = connect(url, size=1)
    with transaction(engine) as connection:
        purses.share(connection, [3, 4, 5, 7], 60.0)
    engine.dispose()
    return url


@pytest.fixture
def looker(fleet, redis_url):
    seeded.limits(redis_url)
    engine = connect(fleet, size=1)
    yield glance.Looker(engine, Settings(redis_url=SecretStr(redis_url)))
    engine.dispose()


def shown(what, **how):
    out = io.StringIO()
    Console(file=out, width=80).print(glance.render(what, **how))
    return out.getvalue()


def test_everything_fits_into_80_columns(looker):
    seen = looker.look()
    lines = shown(seen).splitlines()
    assert max(map(len, lines)) <= 80
    rows = {line.split()[0]: line for line in lines if line[:1] == "B" and ":" not in line}
    assert list(rows) == [f"B{i}" for i in range(1, 9)]
    assert rows["B2"].split()[1:3] == ["at", "budget"]
    for d in seen.datasets:
        assert rows[d.name].split()[-1] == f"${d.spent_usd:.2f}", "the last column is whole"
        assert f"{d.failed}" in rows[d.name]


def test_money_limits_and_the_last_failures_are_shown(looker):
    seen = looker.look()
    text = shown(seen)
    spent = sum(d.spent_usd for d in seen.datasets if d.name in ("B3", "B4", "B5", "B7"))
    assert f"the run's money: ======-............. ${spent:.2f} of $60.00" in text
    assert "openrouter: 519 of 620 at once, ceiling 700" in text
    assert "sglang: 0 of 128 at once paused: bad_credentials" in text
    assert all(f"{f.code} " in text and f.key in text for f in seen.failures)
    assert len(seen.failures) == glance.LATEST
    assert "draftmill open B7" in text, "what a person can do about it"


def test_a_purse_is_shown_to_the_datasets_that_share_it(fleet):
    engine = connect(fleet, size=1)
    shown = {name: glance.Looker(engine, Settings(), [name]).look().purses for name in ("B1", "B3")}
    engine.dispose()
    assert shown["B1"] == []
    assert [purse.datasets for purse in shown["B3"]] == [("B3", "B4", "B5", "B7")]


def test_a_redis_that_is_away_costs_the_limits_alone(fleet):
    engine = connect(fleet, size=1)
    seen = glance.Looker(engine, Settings(redis_url=SecretStr("redis://127.0.0.1:9/0"))).look()
    engine.dispose()
    assert seen.limits is None
    assert "limits are not known: Redis does not answer" in shown(seen)
    assert "B3" in shown(seen)


def test_nothing_yet_says_how_to_begin(database):
    engine = connect(database, size=1)
    text = shown(glance.Looker(engine, Settings()).look())
    engine.dispose()
    assert "draftmill run prompts/" in text
    assert "draftmill up" in text


def test_a_pipe_gets_a_line_for_each_dataset(looker):
    out = io.StringIO()
    with glance.screen(Console(file=out, width=80)) as show:
        seen = looker.look()
        show(seen)
        show(seen)
    lines = out.getvalue().splitlines()
    assert [line.split(":")[0] for line in lines] == [d.name for d in seen.datasets], "the second look comes too soon"
    b4 = seen.datasets[3]
    assert f"{b4.done} done, {b4.queued} left, {b4.running} running, {b4.failed} failed" in lines[3]
    assert "tokens/s" in lines[3]


def totals(**more):
    return DatasetTotals(**{
        "id": 1, "name": "B1", "state": "open", "closed_reason": None, "samples": 100, "queued": 40, "running": 10, "done": 50,
        "failed": 0, "token_budget": None, "stored_tokens": 5_000, "useful_tokens": 5_000, "billed_tokens": 6_000,
        "reserved_tokens": 0, "margin_tokens": 0, "money_budget_usd": None, "spent_usd": 0.0, "reserved_usd": 0.0, **more})


def test_the_range_of_the_end_holds_each_pace_of_late_and_narrows_with_answers():
    few, many = (totals(tokens_per_s=10.0, paces=[10.0, 20.0, 5.0], paced=n) for n in (4, 400))
    assert few.eta_s == many.eta_s == 5_000 / 10
    for d in (few, many):
        low, high = d.eta_range_s
        assert low < 5_000 / 20 < 5_000 / 5 < high
    assert few.eta_range_s[0] < many.eta_range_s[0] < many.eta_range_s[1] < few.eta_range_s[1]


def test_a_budget_ends_a_run_before_its_samples_do():
    assert totals(tokens_per_s=10.0, paces=[10.0], paced=9, token_budget=5_100).eta_s == 10
    assert totals(tokens_per_s=10.0, paces=[10.0], paced=9, state="closed", running=0).eta_s is None
    assert totals().eta_range_s is None
