"""The refresh: from attempts in the database to what is committed."""

import pytest

from models.forecast import counted, edges, forecast
from models.states import Closed, Event, Lane
from models.store import datasets, forecasts
from tests.hand import LONG_MAX, SHORT_MAX, done, ended


async def refresh(store):
    await store.all("update dataset set forecast_at = null")
    return await store.whole(forecasts.refresh)


async def dataset(store):
    return await store.one("select *, stored_tokens + reserved_tokens + margin_tokens as committed from dataset")


async def answered(store, d, sizes, lane=Lane.SHORT, prefix="k"):
    taken = list((await store.claim(await store.samples(d, len(sizes), lane=lane, prefix=prefix), lane=lane)).values())
    await store.settle(*[done(c, n) for c, n in zip(taken, sizes, strict=True)])
    # Sizes in flight are read from time: 10 tokens a second.
    await store.all("update attempt set started_at = ended_at - make_interval(secs => completion_tokens / 10.0)")


async def test_a_new_dataset_expects_its_maximum(store):
    await store.dataset(token_budget=10**6, budget_mode="forecast")
    assert await refresh(store) == 1
    row = await dataset(store)
    assert 0.9 * SHORT_MAX < row.short_expected <= SHORT_MAX
    assert 0.9 * LONG_MAX < row.long_expected <= LONG_MAX
    assert row.committed == 0


async def test_the_refresh_commits_what_the_life_table_says(store):
    d = await store.dataset(token_budget=10**6, budget_mode="forecast")
    sizes = [5, 8, 13, 20, 20, 34, 55, 89, SHORT_MAX, SHORT_MAX]
    await answered(store, d, sizes)
    running = await store.claim(await store.samples(d, 3, prefix="r"))
    for c, seconds in zip(running, (0.5, 2.05, 6.05), strict=True):
        await store.all("update attempt set started_at = clock_timestamp() - make_interval(secs => :s) where sample_id = :id",
                        s=seconds, id=c)
    await refresh(store)
    bounds = edges(SHORT_MAX)
    said = forecast(SHORT_MAX, counted([s for s in sizes if s < SHORT_MAX], bounds), 2, counted([], bounds),
                    counted([5.0, 20.5, 60.5], bounds))
    row = await dataset(store)
    assert row.short_expected == pytest.approx(said.expected, abs=1.1)
    assert row.committed - row.stored_tokens == pytest.approx(said.in_flight + said.sd, rel=0.02)


async def test_answers_of_one_lane_say_nothing_of_the_other(store):
    d = await store.dataset(token_budget=10**6, budget_mode="forecast")
    await answered(store, d, [2] * 200)
    await refresh(store)
    row = await dataset(store)
    assert row.short_expected < SHORT_MAX / 2
    assert row.long_expected > 0.9 * LONG_MAX


async def test_lost_and_released_calls_stay_in_the_table_as_cut_short(store):
    d = await store.dataset(token_budget=10**6, budget_mode="forecast")
    await answered(store, d, [30] * 300)
    await refresh(store)
    before = (await dataset(store)).short_expected
    lost = await store.claim(await store.samples(d, 300, prefix="lost"))
    await store.all("update attempt set started_at = clock_timestamp() - interval '8 s' where ended_at is null")
    await store.settle(*[ended(c, Event.RESCUE if n % 2 else Event.RELEASE) for n, c in enumerate(lost.values())])
    await refresh(store)
    assert (await dataset(store)).short_expected > 1.3 * before


async def test_refused_calls_say_nothing_of_sizes(store):
    d = await store.dataset(token_budget=10**6, budget_mode="forecast")
    await answered(store, d, [10] * 50)
    await refresh(store)
    before = (await dataset(store)).short_expected
    refused = await store.claim(await store.samples(d, 50, prefix="refused"))
    await store.settle(*[ended(c, Event.SNOOZE, "rate_limited") for c in refused.values()])
    await refresh(store)
    assert (await dataset(store)).short_expected == before


async def test_money_is_committed_at_what_tokens_have_cost(store):
    d = await store.dataset(token_budget=10**6, money_budget_usd=50.0, usd_per_million_tokens=77.0, budget_mode="forecast")
    await refresh(store)
    assert (await dataset(store)).nusd_per_token == 77_000
    await answered(store, d, [10] * 50)                     # 1,000 nano-dollars a token
    await store.claim(await store.samples(d, 20, prefix="r"))
    await refresh(store)
    row = await dataset(store)
    assert row.nusd_per_token == 1_000
    tokens = row.reserved_tokens + row.margin_tokens
    assert 1_000 * tokens <= row.reserved_nusd + row.margin_nusd <= 1.5 * 1_000 * tokens


async def test_a_refresh_is_due_once_a_second_and_only_where_it_matters(store):
    await store.dataset("strict", token_budget=100)
    await store.dataset("boundless", budget_mode="forecast")
    shut = await store.dataset("shut", token_budget=100, budget_mode="forecast")
    await store.do(datasets.close, shut, Closed.OPERATOR)
    await store.dataset("due", token_budget=100, budget_mode="forecast")
    assert await store.whole(forecasts.refresh) == 1
    assert await store.whole(forecasts.refresh) == 0
    await store.all("update dataset set forecast_at = forecast_at - interval '1 s'")
    assert await store.whole(forecasts.refresh) == 1
