"""Datasets: made once, brought up to date, closed at their budget and opened again."""

import asyncio

import pytest

from models.base import connect_async
from models.errors import FingerprintDiffers, NameRefused
from models.plan import LanePlan
from models.states import Closed, DatasetState, Event, Lane
from models.store import datasets
from tests.hand import SHORT_MAX, Hand, done, ended, plan


async def only(store):
    [dataset] = await store.do(datasets.every)
    return dataset


async def test_a_dataset_is_made_once_and_then_brought_up_to_date(store):
    first = await store.dataset(token_budget=100)
    assert await store.dataset(token_budget=900, short=LanePlan(max_tokens=50, concurrency=1)) == first
    row = await store.one("select token_budget, short_max_tokens, short_expected from dataset")
    assert row == (900, 50, 50)
    dataset = await only(store)
    assert (dataset.plan.token_budget, dataset.state, list(dataset.accounts)) == (900, DatasetState.OPEN, ["home"])


async def test_two_producers_may_make_the_same_dataset_at_once(store, database):
    engines = [connect_async(database, size=1) for _ in range(6)]
    ids = await asyncio.gather(*(Hand(e).dataset() for e in engines))
    for engine in engines:
        await engine.dispose()
    assert len(set(ids)) == 1
    await only(store)


async def test_names_that_differ_by_case_alone_are_refused(store):
    await store.dataset("Kitchen")
    with pytest.raises(NameRefused, match="'Kitchen' exists"):
        await store.dataset("kitchen")


async def test_other_settings_are_refused_with_their_names_once_rows_exist(store):
    d = await store.dataset()
    [s] = await store.samples(d)
    await store.dataset(model="another/model")              # nothing was made with the old settings yet
    await store.settle(done(await store.claimed(s)))
    with pytest.raises(FingerprintDiffers) as refusal:
        await store.dataset(model="a/model", thinking=True)
    for told in ("'B1'", 'model ("another/model" before, "a/model" now)', "thinking (null before, true now)"):
        assert told in str(refusal.value)
    assert "sampling" not in str(refusal.value)
    assert (await only(store)).plan.model == "another/model"


async def test_other_settings_are_taken_where_a_mixture_is_asked_for(store):
    [s] = await store.samples(await store.dataset())
    await store.settle(done(await store.claimed(s)))
    await store.whole(datasets.put, "B1", plan(thinking=True), {"home": (await only(store)).accounts["home"]}, mix=True)
    assert (await only(store)).plan.thinking is True


async def test_budgets_and_lanes_are_no_part_of_the_fingerprint(store):
    [s] = await store.samples(await store.dataset())
    await store.settle(done(await store.claimed(s)))
    await store.dataset(token_budget=5, money_budget_usd=1.0, short=LanePlan(max_tokens=9, concurrency=1))


async def test_closing_and_opening_tell_whether_they_did_something(store):
    d = await store.dataset()
    [s] = await store.samples(d)
    assert await store.do(datasets.close, d, Closed.OPERATOR)
    assert not await store.do(datasets.close, d, Closed.BUDGET)
    assert (await only(store)).closed_reason == "operator"
    assert not await store.claim([s])
    assert await store.do(datasets.open_again, d)
    assert not await store.do(datasets.open_again, d)
    assert await store.claim([s])


async def at_budget(store):
    return await store.do(datasets.at_budget)


async def test_a_dataset_is_at_its_budget_when_nothing_runs_and_no_waiting_sample_fits(store):
    d = await store.dataset(token_budget=2 * SHORT_MAX + SHORT_MAX // 2)
    a, b, c = await store.samples(d, 3)
    assert not await at_budget(store)
    taken = await store.claim([a, b, c])
    assert not await at_budget(store)                       # in flight: what they leave over is not known yet
    await store.settle(done(taken[a], SHORT_MAX))
    assert not await at_budget(store)
    await store.settle(done(taken[b], SHORT_MAX))
    assert await at_budget(store) == {d: Closed.BUDGET}


async def test_a_sample_that_still_fits_keeps_its_dataset_open(store):
    d = await store.dataset(token_budget=SHORT_MAX // 2)
    await store.samples(d, 3)
    assert await at_budget(store) == {d: Closed.BUDGET}
    await store.samples(d, lane=Lane.LONG, max_tokens=10, prefix="small")
    assert not await at_budget(store)


async def test_a_sample_that_can_never_fit_does_not_keep_its_dataset_open(store):
    d = await store.dataset(token_budget=2 * SHORT_MAX)
    await store.samples(d, max_tokens=5 * SHORT_MAX)
    assert await at_budget(store) == {d: Closed.BUDGET}


async def test_a_snoozed_sample_keeps_its_dataset_open(store):
    [s] = await store.samples(await store.dataset(token_budget=SHORT_MAX))
    await store.settle(ended(await store.claimed(s), Event.SNOOZE, wait_s=60))
    assert not await at_budget(store)


async def test_money_closes_a_dataset_too(store):
    d = await store.dataset(money_budget_usd=0.0015, token_budget=10_000)
    a, b = await store.samples(d, 2)
    await store.settle(done(await store.claimed(a), cost_nusd=1_000_000))
    assert not await store.claim([b])
    assert await at_budget(store) == {d: Closed.MONEY}


async def test_what_the_last_refresh_left_as_margin_closes_nothing(store):
    d = await store.dataset(token_budget=10 * SHORT_MAX, budget_mode="forecast")
    await store.samples(d, 3)
    await store.all("update dataset set margin_tokens = 9 * :m", m=SHORT_MAX)
    assert not await at_budget(store)


async def test_a_finished_dataset_is_not_closed(store):
    [s] = await store.samples(await store.dataset(token_budget=10_000))
    await store.settle(done(await store.claimed(s)))
    assert not await at_budget(store)


async def test_a_raised_budget_resumes_what_a_spent_one_had_closed(store):
    d = await store.dataset(token_budget=SHORT_MAX)
    a, b = await store.samples(d, 2)
    await store.settle(done(await store.claimed(a), SHORT_MAX))
    await store.do(datasets.close, d, Closed.BUDGET)
    assert await store.do(datasets.resume, ["B1"]) == []
    await store.dataset(token_budget=2 * SHORT_MAX)
    assert await store.do(datasets.resume, ["other"]) == []
    assert await store.do(datasets.resume, ["B1"]) == ["B1"]
    assert await store.claim([b])


@pytest.mark.parametrize("reason", [Closed.OPERATOR, Closed.ROUTING, Closed.MODEL])
async def test_what_an_operator_or_a_fault_closed_is_not_resumed(store, reason):
    d = await store.dataset()
    await store.samples(d)
    await store.do(datasets.close, d, reason)
    assert await store.do(datasets.resume, ["B1"]) == []


async def test_a_finished_dataset_is_not_resumed(store):
    d = await store.dataset()
    await store.do(datasets.close, d, Closed.BUDGET)
    assert await store.do(datasets.resume, ["B1"]) == []
