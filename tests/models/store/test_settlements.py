"""Settle: what each event leaves behind, who is refused, and what is booked all the same."""

import asyncio
import json
from dataclasses import replace

import pytest

from models import blob
from models.errors import StoreError
from models.states import TRANSITIONS, Event, Lane, State
from models.store.settlements import MAX_CRASHES, NextTurn, Settlement
from tests.hand import SHORT_MAX, done, ended, stored


@pytest.fixture
async def claim(store):
    [s] = await store.samples(await store.dataset(token_budget=10_000))
    return await store.claimed(s)


async def test_done_stores_the_answer_and_returns_the_reservation(store, claim):
    raw = blob.pack_raw(b'{"content": "\0 \xed\xa0\xbd"}')
    row = stored(10, raw=raw, spans=json.dumps([["content", 0, 9], ["stop", 9, 10]]), flags="odd,long", delta=-1,
                 sampling=json.dumps({"temperature": 0.7}), truncated=True, trainable=False, grade=3)
    assert await store.settle(done(claim, row=row)) == {claim.id}
    completion = await store.one("select * from completion")
    assert (completion.sample_id, completion.fence, completion.grade, completion.n_tokens) == (claim.id, 1, 3, 10)
    assert (completion.flags, completion.spans) == (["odd", "long"], [["content", 0, 9], ["stop", 9, 10]])
    assert (completion.sampling, completion.delta, completion.billed_prompt_tokens, completion.billed_tokens) == (
        {"temperature": 0.7}, -1, 3, 10)
    assert blob.unpack_raw(completion.raw) == b'{"content": "\0 \xed\xa0\xbd"}'
    assert blob.unpack_ids(completion.ids).tolist() == list(range(10))
    attempt = await store.one("select * from attempt")
    assert (attempt.action, attempt.code, attempt.basis) == ("done", "ok", "usage")
    assert (attempt.provider, attempt.cost_nusd) == ("P", 10_000)
    sample = await store.sample(claim.id)
    assert (sample.state, sample.worker_id, sample.reason) == (State.DONE, None, None)
    dataset = await store.one("select * from dataset")
    assert (dataset.reserved_tokens, dataset.stored_tokens, dataset.useful_tokens, dataset.billed_tokens) == (0, 10, 0, 13)
    await store.check_counters()


async def test_an_estimate_is_no_billed_count_of_the_completion(store, claim):
    await store.settle(done(claim, basis="estimate"))
    assert (await store.one("select billed_tokens, cost_nusd from completion")) == (None, 10_000)


@pytest.mark.parametrize("event", [Event.RETRY, Event.SNOOZE, Event.RELEASE, Event.PROMOTE, Event.DROP, Event.RESCUE])
async def test_every_event_leads_where_the_drawing_says(store, claim, event):
    await store.settle(ended(claim, event, "why", cost_nusd=7, completion_tokens=4, basis="estimate"))
    sample = await store.sample(claim.id)
    assert sample.state == TRANSITIONS[State.RUNNING, event]
    assert (sample.worker_id, sample.reason, sample.fence) == (None, "why", claim.fence)
    attempt = await store.one("select * from attempt")
    assert (attempt.action, attempt.code, attempt.cost_nusd, attempt.completion_tokens) == (str(event), "why", 7, 4)
    await store.check_counters()


async def test_a_retry_burns_an_attempt_and_a_snooze_does_not(store, claim):
    await store.settle(ended(claim, Event.SNOOZE, wait_s=0))
    assert (await store.sample(claim.id)).burnt == 0
    again = await store.claimed(claim.id)
    await store.settle(ended(again, Event.RETRY, burns=True, possibly_paid=True))
    assert (await store.claimed(claim.id)).burnt == 1
    assert (await store.sample(claim.id)).possibly_paid == 1


async def test_a_wait_is_counted_on_the_database_clock(store, claim):
    await store.settle(ended(claim, Event.RETRY, wait_s=50))
    row = await store.one("select extract(epoch from not_before - changed_at) as s from sample")
    assert 49 < row.s < 51


async def test_providers_to_leave_out_are_kept_once_each(store, claim):
    for provider in ("Acme", "Acme", "Other"):
        await store.settle(ended(claim, Event.RETRY, ignore=provider))
        claim = await store.claimed(claim.id)
    assert claim.ignore == ["Acme", "Other"]


async def test_a_promotion_keeps_the_partial_answer_and_stores_nothing(store, claim):
    await store.settle(ended(claim, Event.PROMOTE, "truncated", stored=stored(SHORT_MAX), completion_tokens=SHORT_MAX))
    partial = await store.one("select * from partial")
    assert (partial.sample_id, partial.n_tokens, partial.exact) == (claim.id, SHORT_MAX, True)
    assert (await store.sample(claim.id)).lane == Lane.LONG
    assert (await store.one("select stored_tokens from dataset")).stored_tokens == 0
    again = await store.claimed(claim.id, lane=Lane.LONG)
    await store.settle(done(again))
    assert not await store.all("select from partial")
    await store.check_counters()


async def test_the_next_turn_is_queued_in_the_transaction_that_stores_this_one(store, claim):
    follow = NextTurn("k#t1", 1, int(Lane.LONG), blob.pack_json({"messages": []}))
    bad = done(claim, next_turn=follow, row=stored(10, spans="no json"))
    with pytest.raises(StoreError):
        await store.settle(bad)
    assert not await store.all("select from sample where turn = 1")
    for _ in range(2):
        await store.settle(done(claim, next_turn=follow))
    sample = await store.one("select * from sample where turn = 1")
    assert (sample.key, sample.primary_id, sample.lane, sample.state) == ("k#t1", claim.primary_id, Lane.LONG, State.QUEUED)
    assert (await store.one("select samples from dataset")).samples == 2
    await store.check_counters()


async def test_repeating_a_settlement_changes_nothing(store):
    d = await store.dataset()
    taken = list((await store.claim(await store.samples(d, 7))).values())
    batch = [done(taken[0]), *(ended(c, e, cost_nusd=5) for c, e in zip(
        taken[1:], [e for e in Event if e not in (Event.CLAIM, Event.DONE, Event.REQUEUE, Event.IMPORT)], strict=True))]
    await store.settle(*batch)
    before = await store.all("select d, s, a from dataset d, sample s join attempt a on a.sample_id = s.id order by s.id")
    assert await store.settle(*batch) == set()
    assert await store.all("select d, s, a from dataset d, sample s join attempt a on a.sample_id = s.id order by s.id") == before
    await store.check_counters()


async def test_one_settlement_twice_in_a_batch_counts_once(store, claim):
    assert await store.settle(done(claim), done(claim)) == {claim.id}
    await store.check_counters()


async def test_a_late_writer_is_refused_by_its_fence_and_its_cost_is_booked(store, claim):
    await store.settle(ended(claim, Event.RESCUE, "worker_lost", basis="estimate", completion_tokens=50, cost_nusd=50_000))
    second = await store.claimed(claim.id, worker=2)
    assert await store.settle(done(claim, n_tokens=30)) == set()
    assert not await store.all("select from completion")
    dataset = await store.one("select spent_nusd, billed_tokens, stored_tokens, running from dataset")
    assert dataset == (30_000, 33, 0, 1)                      # the estimate was corrected by the difference
    assert await store.settle(done(claim, n_tokens=30)) == set()
    assert (await store.one("select spent_nusd from dataset")).spent_nusd == 30_000
    assert await store.settle(done(second, n_tokens=20)) == {claim.id}
    assert (await store.one("select n_tokens, fence from completion")) == (20, 2)
    await store.check_counters()


async def test_a_second_rescue_does_not_replace_what_a_late_writer_told(store, claim):
    lost = ended(claim, Event.RESCUE, "worker_lost", basis="estimate", completion_tokens=50, cost_nusd=50_000)
    await store.settle(lost)
    await store.settle(done(claim, n_tokens=30))
    await store.settle(lost)
    assert (await store.one("select action, cost_nusd from attempt")) == ("done", 30_000)
    await store.check_counters()


async def test_a_rescued_sample_that_nobody_took_again_still_refuses_its_late_answer(store, claim):
    """Its reservation was given back and may be another's by now: storing it could pass the budget."""
    await store.settle(ended(claim, Event.RESCUE, "worker_lost"))
    assert await store.settle(done(claim)) == set()
    assert (await store.sample(claim.id)).state == State.QUEUED
    await store.check_counters()


async def test_a_sample_fails_as_poison_after_three_blamed_crashes(store, claim):
    for crash in range(1, MAX_CRASHES + 1):
        await store.settle(ended(claim, Event.RESCUE, "worker_lost", blamed=True))
        sample = await store.sample(claim.id)
        assert sample.crashes == crash
        if crash < MAX_CRASHES:
            claim = await store.claimed(claim.id)
    assert (sample.state, sample.reason) == (State.FAILED, "poison")
    await store.check_counters()


async def test_settlements_of_several_datasets_count_each_to_its_own(store):
    taken = []
    for name in ("B1", "B2", "B3"):
        taken += (await store.claim(await store.samples(await store.dataset(name), 3))).values()
    await store.settle(*[done(c, n_tokens=n) for n, c in enumerate(taken, 1)])
    rows = await store.all("select stored_tokens from dataset order by name")
    assert [r.stored_tokens for r in rows] == [1 + 2 + 3, 4 + 5 + 6, 7 + 8 + 9]
    await store.check_counters()


async def test_what_was_committed_stays_committed_until_the_forecast_is_refreshed(store):
    """The life table had more to say of an answer than its own reservation: giving that back would admit too much."""
    d = await store.dataset(token_budget=1_000, money_budget_usd=1.0, budget_mode="forecast")
    taken = await store.claim(await store.samples(d, 5))
    committed = "select stored_tokens + reserved_tokens + margin_tokens, spent_nusd + reserved_nusd + margin_nusd from dataset"
    before = await store.one(committed)
    await store.settle(*[done(c, n_tokens=20) for c in taken.values()])
    assert await store.one(committed) == before
    await store.check_counters()


async def test_a_strict_dataset_has_no_margin(store, claim):
    await store.settle(done(claim))
    assert (await store.one("select margin_tokens, margin_nusd from dataset")) == (0, 0)


async def test_a_bad_row_fails_its_whole_batch_and_leaves_nothing_behind(store):
    taken = list((await store.claim(await store.samples(await store.dataset(), 3))).values())
    for bad in (replace(done(taken[1]), provider="NUL \0"), replace(done(taken[1]), provider="half \ud83d"),
                done(taken[1], row=stored(5, spans="no json")), replace(done(taken[1]), completion_tokens=2**31)):
        with pytest.raises(StoreError):
            await store.settle(done(taken[0]), bad, done(taken[2]))
    assert (await store.one("select running, done from dataset")) == (3, 0)
    await store.check_counters()


async def test_settlements_and_claims_do_not_wait_for_each_other_forever(store):
    d = await store.dataset()
    ids = await store.samples(d, 60)
    taken = list((await store.claim(ids[:30])).values())
    await asyncio.gather(store.settle(*[done(c) for c in taken[:15]]), store.settle(*[done(c) for c in reversed(taken)]),
                         store.claim(ids), store.claim(list(reversed(ids))))
    assert (await store.one("select done from dataset")).done == 30
    await store.check_counters()


async def test_a_settlement_of_an_unknown_sample_is_refused_without_harm(store, claim):
    assert await store.settle(Settlement(999, 1, Event.DROP, "x"), done(claim)) == {claim.id}
