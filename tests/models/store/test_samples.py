"""Samples: put in once, hinted while due, asked for again and taken back."""

import asyncio

from models import blob
from models.base import connect_async
from models.states import Event, Lane, State
from models.store import samples
from models.store.samples import NewSample, Selection
from tests.hand import SHORT_MAX, Hand, done, ended, stored


async def test_adding_again_adds_nothing(store):
    d = await store.dataset()
    first = await store.samples(d, 5)
    assert await store.samples(d, 5) == first
    assert (await store.one("select samples from dataset")).samples == 5


async def test_two_producers_adding_the_same_rows_at_once_add_each_once(store, database):
    d = await store.dataset()
    rows = [NewSample(f"k{i}", f"k{i}", 0, Lane.SHORT, None, b"") for i in range(1_000)]
    engines = [connect_async(database, size=1) for _ in range(2)]
    added = await asyncio.gather(
        *(Hand(e).do(samples.add, d, part) for e in engines for part in (rows[:600], rows[400:], rows[::-1])))
    for engine in engines:
        await engine.dispose()
    assert sum(added) == 1_000
    await store.check_counters()


async def test_one_key_twice_in_a_batch_is_one_sample(store):
    d = await store.dataset()
    assert await store.do(samples.add, d, [NewSample("k", "k", 0, Lane.SHORT, None, b"")] * 3) == 1
    await store.check_counters()


async def test_the_same_key_may_stand_in_two_datasets(store):
    a, b = await store.dataset("a"), await store.dataset("b")
    assert not set(await store.samples(a, 3)) & set(await store.samples(b, 3))


async def test_due_samples_without_a_fresh_hint_are_hinted_in_order(store):
    d = await store.dataset()
    ids = await store.samples(d, 10)
    await store.samples(d, 2, lane=Lane.LONG, prefix="l")
    await store.settle(ended(await store.claimed(ids[0]), Event.SNOOZE, wait_s=60))
    await store.claimed(ids[1])
    assert await store.do(samples.hintable, d, Lane.SHORT, 3) == ids[2:5]
    assert await store.do(samples.hintable, d, Lane.SHORT, 100) == ids[5:]
    assert await store.do(samples.hintable, d, Lane.SHORT, 100) == []
    assert await store.do(samples.hintable, d, Lane.SHORT, 100, stale_s=0.0) == ids[2:]


async def test_a_sample_that_comes_back_may_be_hinted_at_once(store):
    d = await store.dataset()
    [s] = await store.samples(d)
    assert await store.do(samples.hintable, d, Lane.SHORT, 1) == [s]
    await store.settle(ended(await store.claimed(s), Event.RETRY))
    assert await store.do(samples.hintable, d, Lane.SHORT, 1) == [s]


async def failed(store, d, n=4, code="http_500", provider="P", **changes):
    taken = await store.claim(await store.samples(d, n, **changes))
    await store.settle(*[ended(c, Event.DROP, code, provider=provider, burns=True) for c in taken.values()])
    return sorted(taken)


async def again(store, selection, lane=None, max_tokens=None):
    def verb(connection):
        rows = samples.select(connection, selection)
        return samples.requeue(connection, rows, lane=lane, max_tokens=max_tokens, who="me", what={"codes": selection.codes})
    return await store.whole(verb)


async def test_failed_samples_are_queued_again_as_new(store):
    d = await store.dataset()
    ids = await failed(store, d)
    n, record = await again(store, Selection(d), lane=Lane.LONG, max_tokens=300)
    assert n == 4
    for s in ids:
        sample = await store.sample(s)
        assert (sample.state, sample.lane, sample.max_tokens, sample.burnt, sample.crashes) == (0, Lane.LONG, 300, 0, 0)
    row = await store.one("select * from requeue")
    assert (row.id, row.who, row.what, [b[0] for b in row.before]) == (record, "me", {"codes": None}, ids)
    await store.check_counters()
    assert len(await store.claim(ids, lane=Lane.LONG)) == 4


async def test_a_selection_takes_what_it_names_and_nothing_else(store):
    d, other = await store.dataset(), await store.dataset("other")
    broken = await failed(store, d, 2, "http_500", "P", prefix="a")
    filtered = await failed(store, d, 2, "content_filtered", "Q", prefix="b")
    await failed(store, other, 2, prefix="c")
    await store.all("update sample set changed_at = changed_at - interval '1 hour' where id = :id", id=filtered[0])

    async def chosen(**what):
        return [row.id for row in await store.whole(samples.select, Selection(d, **what))]

    assert await chosen() == broken + filtered
    assert await chosen(codes=("content_filtered", "x")) == filtered
    assert await chosen(provider="P") == broken
    assert await chosen(lane=Lane.LONG) == []
    assert await chosen(older_than_s=600) == filtered[:1]
    assert await chosen(limit=1) == broken[:1]
    assert await chosen(truncated=True) == []


async def test_a_truncated_row_gives_its_tokens_back_and_is_kept_as_partial(store):
    d = await store.dataset(token_budget=SHORT_MAX)
    [s] = await store.samples(d)
    row = stored(SHORT_MAX, truncated=True, grade=3, raw=blob.pack_json("cut"))
    await store.settle(done(await store.claimed(s), SHORT_MAX, row=row))
    n, _ = await again(store, Selection(d, truncated=True))
    assert n == 1
    dataset = await store.one("select stored_tokens, useful_tokens, done, failed, billed_tokens from dataset")
    assert dataset == (0, 0, 0, 0, SHORT_MAX + 3)
    partial = await store.one("select n_tokens, exact, raw from partial")
    assert partial == (SHORT_MAX, False, blob.pack_json("cut"))
    await store.check_counters()
    claim = await store.claimed(s)
    assert (claim.fence, claim.prefix_ids) == (2, None)
    await store.settle(done(claim, 50))
    await store.check_counters()


async def test_rows_of_a_grade_are_asked_for_again(store):
    d = await store.dataset()
    a, b = await store.samples(d, 2)
    await store.settle(done(await store.claimed(a), row=stored(grade=1)), done(await store.claimed(b), row=stored(grade=5)))
    assert [r.id for r in await store.whole(samples.select, Selection(d, grades=(0, 1)))] == [a]


async def test_a_requeue_is_undone_for_samples_that_nobody_claimed_since(store):
    d = await store.dataset()
    ids = await failed(store, d)
    _, record = await again(store, Selection(d), lane=Lane.LONG, max_tokens=300)
    claim = await store.claimed(ids[0], lane=Lane.LONG)
    await store.settle(ended(claim, Event.RETRY))           # queued again, but it was claimed
    assert await store.whole(samples.undo, record) == 3
    assert await store.whole(samples.undo, record) == 0
    states = [(await store.sample(s)).state for s in ids]
    assert states == [State.QUEUED] + [State.FAILED] * 3
    sample = await store.sample(ids[1])
    assert (sample.lane, sample.max_tokens, sample.reason) == (Lane.SHORT, None, "http_500")
    await store.check_counters()


async def test_undoing_an_unknown_record_does_nothing(store):
    assert await store.whole(samples.undo, 77) == 0
