"""Claim: who gets which sample, and what is reserved."""

import asyncio
import random

from models import blob
from models.base import connect_async
from models.states import Closed, Event, Lane
from models.store import datasets
from tests.hand import LONG_MAX, SHORT_MAX, Hand, done, ended, stored


async def test_a_claim_returns_the_prompt_and_opens_an_attempt_with_its_reservation(store):
    d = await store.dataset(token_budget=10_000)
    prompt = {"messages": [{"role": "user", "content": "NUL \0 and half a pair \ud83d"}]}
    [s] = await store.samples(d, prompt=prompt)
    claim = await store.claimed(s, worker=7)
    assert (claim.id, claim.fence, claim.lane, claim.max_tokens, claim.key) == (s, 1, 0, SHORT_MAX, "k0000000")
    assert blob.unpack_json(claim.prompt) == prompt
    attempt = await store.one("select * from attempt")
    assert (attempt.sample_id, attempt.fence, attempt.worker_id, attempt.account) == (s, 1, 7, "home")
    assert (attempt.reserved_tokens, attempt.ended_at) == (SHORT_MAX, None)
    await store.check_counters()


async def test_only_queued_due_samples_of_this_lane_in_open_datasets_are_claimed(store):
    d, shut = await store.dataset(), await store.dataset("shut")
    queued, running, finished, failed, later = await store.samples(d, 5)
    [other] = await store.samples(d, lane=Lane.LONG, prefix="l")
    [closed] = await store.samples(shut)
    await store.do(datasets.close, shut, Closed.OPERATOR)
    taken = await store.claim([running, finished, failed, later])
    await store.settle(done(taken[finished]), ended(taken[failed], Event.DROP), ended(taken[later], Event.SNOOZE, wait_s=60))
    got = await store.claim([queued, running, finished, failed, later, other, closed, 999_999])
    assert set(got) == {queued}
    assert set(await store.claim([queued, other], lane=Lane.LONG)) == {other}


async def test_a_snoozed_sample_is_claimed_once_its_time_has_come(store):
    [s] = await store.samples(await store.dataset())
    await store.settle(ended(await store.claimed(s), Event.SNOOZE, wait_s=3600))
    assert not await store.claim([s])
    await store.all("update sample set not_before = clock_timestamp() - interval '1 ms'")
    assert (await store.claimed(s)).fence == 2


async def test_admission_stops_where_the_token_budget_cannot_hold_one_more_answer(store):
    d = await store.dataset(token_budget=5 * SHORT_MAX + SHORT_MAX - 1)
    ids = await store.samples(d, 20)
    assert len(await store.claim(ids)) == 5
    assert not await store.claim(ids)


async def test_money_is_reserved_like_tokens(store):
    d = await store.dataset(money_budget_usd=0.0035, usd_per_million_tokens=10.0)     # an answer of 100 tokens: 0.001
    taken = await store.claim(await store.samples(d, 10))
    assert len(taken) == 3
    assert (await store.one("select reserved_nusd from dataset")).reserved_nusd == 3_000_000
    await store.settle(*[ended(c, Event.DROP, cost_nusd=100_000) for c in taken.values()])
    await store.check_counters()
    assert len(await store.claim([i for i in await store.samples(d, 10) if i not in taken])) == 3


async def test_what_was_not_used_is_room_for_others(store):
    d = await store.dataset(token_budget=SHORT_MAX)
    first, second = await store.samples(d, 2)
    await store.settle(done(await store.claimed(first), n_tokens=SHORT_MAX // 2))
    assert not await store.claim([second])
    await store.all("update dataset set token_budget = token_budget + 50")
    assert await store.claim([second])


async def test_an_own_maximum_is_reserved_instead_of_the_lanes(store):
    d = await store.dataset(token_budget=1_000)
    [small] = await store.samples(d, max_tokens=7, prefix="small")
    [large] = await store.samples(d, max_tokens=900, prefix="large")
    assert (await store.claimed(small)).max_tokens == 7
    assert (await store.claimed(large)).max_tokens == 900
    assert (await store.one("select reserved_tokens from dataset")).reserved_tokens == 907


async def test_a_sample_too_large_for_what_is_left_does_not_keep_smaller_ones_out(store):
    d = await store.dataset(token_budget=450)
    [large] = await store.samples(d, max_tokens=500, prefix="large")
    small = await store.samples(d, 6, max_tokens=100, prefix="small")
    assert set(await store.claim([large, *small])) == set(small[:4])


async def test_an_expectation_of_the_forecast_is_reserved_when_the_dataset_is_not_strict(store):
    d = await store.dataset(token_budget=1_000, budget_mode="forecast")
    await store.all("update dataset set short_expected = 30, long_expected = 60")
    [tiny] = await store.samples(d, max_tokens=8, prefix="tiny")
    usual, long = await store.samples(d, 2), await store.samples(d, lane=Lane.LONG, prefix="l")
    await store.claim([tiny, *usual])
    await store.claim(long, lane=Lane.LONG)
    assert (await store.one("select reserved_tokens from dataset")).reserved_tokens == 8 + 2 * 30 + 60


async def test_the_margin_of_the_forecast_counts_as_committed(store):
    d = await store.dataset(token_budget=10 * SHORT_MAX, budget_mode="forecast")
    ids = await store.samples(d, 10)
    await store.all("update dataset set margin_tokens = :m", m=7 * SHORT_MAX)
    assert len(await store.claim(ids)) == 3
    await store.all("update dataset set margin_tokens = :m", m=-2 * SHORT_MAX)
    assert len(await store.claim(ids)) == 7


async def test_asking_for_one_sample_twice_in_a_batch_claims_it_once(store):
    [s] = await store.samples(await store.dataset())
    assert list(await store.claim([s, s])) == [s]
    assert (await store.one("select count(*) as n from attempt")).n == 1


async def test_a_promoted_exact_partial_comes_with_the_claim(store):
    [s] = await store.samples(await store.dataset())
    ids = blob.pack_ids([5, 6, 7])
    await store.settle(ended(await store.claimed(s), Event.PROMOTE, "truncated", stored=stored(3, ids=ids)))
    claim = await store.claimed(s, lane=Lane.LONG)
    assert (claim.prefix_ids, claim.max_tokens) == (ids, LONG_MAX)


async def _race(database, asks):
    """The same thing from several connections at once, as workers of their own would."""
    engines = [connect_async(database, size=1) for _ in asks]
    try:
        hands = [Hand(e) for e in engines]
        await asyncio.gather(*(h.one("select 1") for h in hands))     # connected: the race is for the rows
        return await asyncio.gather(*(ask(h, n) for n, (h, ask) in enumerate(zip(hands, asks, strict=True), 1)))
    finally:
        for engine in engines:
            await engine.dispose()


async def test_four_workers_racing_for_the_last_room_take_exactly_what_fits(store, database):
    d = await store.dataset(token_budget=123 * SHORT_MAX + 3)
    ids = await store.samples(d, 400)

    async def ask(hand, worker):
        own, taken = ids[worker - 1::4], 0
        for start in range(0, len(own), 10):
            taken += len(await hand.claim(own[start:start + 10], worker))
        return taken

    assert sum(await _race(database, [ask] * 4)) == 123
    await store.check_counters()


async def test_four_workers_racing_for_the_same_hints_claim_each_sample_once(store, database):
    ids = await store.samples(await store.dataset(), 100)

    async def ask(hand, worker):
        own = ids[:]
        random.Random(worker).shuffle(own)
        return [i for start in range(0, 100, 20) for i in await hand.claim(own[start:start + 20], worker)]

    taken = [i for got in await _race(database, [ask] * 4) for i in got]
    assert len(taken) == len(set(taken))
    # A row that another held at that moment was passed over; asking once more takes the rest.
    taken += await store.claim(ids, 9)
    assert sorted(taken) == ids
    await store.check_counters()


async def test_a_claim_never_waits_for_a_row_that_another_transaction_holds(store):
    held, free = await store.samples(await store.dataset(), 2)
    async with store.engine.connect() as connection:
        await connection.execution_options(isolation_level="READ COMMITTED")
        async with connection.begin():
            await connection.exec_driver_sql(f"select from sample where id = {held} for update")
            assert set(await asyncio.wait_for(store.claim([held, free]), 10)) == {free}
    assert set(await store.claim([held])) == {held}
