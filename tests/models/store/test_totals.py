"""What people read: the sums of `status`, and the view `samples` in psql."""

import pytest

from models import blob
from models.states import Event, Lane
from models.store import totals
from models.store.settlements import NextTurn
from tests.hand import done, ended, stored


@pytest.fixture
async def busy(store):
    """Two good answers (one truncated), a failure, a retried one, one running in each lane, one queued."""
    d = await store.dataset(token_budget=1_000, money_budget_usd=1.0)
    ids = await store.samples(d, 6)
    long = await store.samples(d, lane=Lane.LONG, prefix="l")
    taken = await store.claim(ids[:5])
    await store.claim(long, lane=Lane.LONG)
    await store.settle(
        done(taken[ids[0]], 40),
        done(taken[ids[1]], 20, row=stored(20, grade=0, trainable=False, truncated=True), code="truncated"),
        ended(taken[ids[2]], Event.DROP, "content_filtered", provider="Q", cost_nusd=500, completion_tokens=5),
        ended(taken[ids[3]], Event.RETRY, "http_500", provider="Q"))
    return d


async def test_a_datasets_sums(store, busy):
    [t] = await store.do(totals.datasets)
    assert (t.samples, t.queued, t.running, t.done, t.failed) == (7, 2, 2, 2, 1)
    assert (t.stored_tokens, t.useful_tokens, t.billed_tokens) == (60, 40, 71)
    assert (t.spent_usd, t.money_budget_usd) == (60_500 / 1e9, 1.0)
    assert (t.grades, t.failures, t.running_by_lane) == (
        {"engine": 1, "rejected": 1}, {"content_filtered": 1}, {"short": 1, "long": 1})
    assert t.tokens_per_s == 1.0
    assert t.usd_per_million == pytest.approx(60_500 / 1e9 * 1e6 / 40)
    assert not t.finished
    assert t.eta_s == pytest.approx(4 * 30 / 1.0)
    assert t.as_json()["waste_tokens"] == 11


async def test_only_named_datasets_are_told(store, busy):
    await store.dataset("other")
    assert [t.name for t in await store.do(totals.datasets)] == ["B1", "other"]
    assert [t.name for t in await store.do(totals.datasets, ["other"])] == ["other"]


async def test_providers_are_told_apart(store, busy):
    told = {p.provider: p for p in await store.do(totals.providers)}
    assert (told["P"].calls, told["P"].ok, told["P"].truncated) == (2, 2, 1)
    assert (told["Q"].calls, told["Q"].ok, told["Q"].broken, told["Q"].cost_usd) == (2, 0, 2, 500 / 1e9)


async def test_a_providers_limits_errors_refusals_and_grades_are_counted(store, busy):
    full, broken = list((await store.claim(await store.samples(busy, 2, prefix="m"))).values())
    await store.settle(ended(full, Event.SNOOZE, "rate_limited", provider="Q", status=429),
                       ended(broken, Event.RETRY, "provider_error", provider="Q", status=502))
    told = {p.provider: p for p in await store.do(totals.providers)}
    assert (told["P"].limited, told["P"].server_errors, told["P"].refusals, told["P"].grades) == (
        0, 0, 0, {"rejected": 1, "engine": 1})
    assert (told["Q"].limited, told["Q"].server_errors, told["Q"].refusals, told["Q"].grades) == (1, 1, 1, {})


async def test_the_view_has_one_line_per_sample(store, busy):
    rows = await store.all("select * from samples order by id")
    assert [(r.lane, r.state, r.grade, r.tokens, r.attempts) for r in rows] == [
        ("short", "done", "engine", 40, 1), ("short", "done", "rejected", 20, 1), ("short", "failed", None, None, 1),
        ("short", "queued", None, None, 1), ("short", "running", None, None, 1), ("short", "queued", None, None, 0),
        ("long", "running", None, None, 1)]
    assert {r.dataset for r in rows} == {"B1"}
    assert (rows[0].key, rows[0].prompt_tokens, rows[0].finish_reason, rows[0].provider) == ("k0000000", 3, "stop", "P")
    assert (rows[2].reason, rows[3].reason) == ("content_filtered", "http_500")
    assert [float(r.cost_usd) for r in rows[:4]] == [40_000 / 1e9, 20_000 / 1e9, 500 / 1e9, 0]


async def test_the_view_and_the_sums_agree(store, busy):
    row = await store.one("select sum(tokens) as tokens, sum(cost_usd) as usd, count(*) as n from samples")
    [t] = await store.do(totals.datasets)
    assert (row.tokens, float(row.usd), row.n) == (t.stored_tokens, t.spent_usd, t.samples)


async def test_every_turn_of_a_conversation_has_its_own_line(store):
    d = await store.dataset()
    [s] = await store.samples(d)
    await store.settle(done(await store.claimed(s), next_turn=NextTurn("k#t1", 1, 0, blob.pack_json({}))))
    rows = await store.all("select primary_id, turn, state from samples order by turn")
    assert rows == [("k0000000", 0, "done"), ("k0000000", 1, "queued")]
