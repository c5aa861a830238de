"""Asking again: what it can cost, who asked, and the way back."""

import pytest

from models.base import connect
from models.errors import SettingsError
from models.states import Closed, Event, Lane, State
from models.store import datasets
from producer.requeue import Wish, requeue, undo
from tests.hand import LONG_MAX, SHORT_MAX, done, ended, stored


@pytest.fixture
def engine(database):
    engine = connect(database, size=1)
    yield engine
    engine.dispose()


@pytest.fixture
async def failures(store):
    """Two http_500 of P, one content_filtered of Q, and a good row of 10 tokens for 10,000 nano-dollars."""
    ids = await store.samples(await store.dataset(), 4)
    taken = await store.claim(ids)
    await store.settle(*[ended(taken[i], Event.DROP, "http_500", provider="P") for i in ids[:2]],
                       ended(taken[ids[2]], Event.DROP, "content_filtered", provider="Q"), done(taken[ids[3]]))
    return ids[:3]


async def states(store, ids):
    return [(await store.sample(i)).state for i in ids]


async def test_a_dry_run_tells_the_bound_and_changes_nothing(store, engine, failures):
    bound = requeue(engine, Wish("B1"), dry_run=True)
    assert (bound.count, bound.causes, bound.max_tokens) == (3, {"http_500": 2, "content_filtered": 1}, 3 * SHORT_MAX)
    assert bound.max_usd == pytest.approx(3 * SHORT_MAX * 1_000 / 1e9)
    assert bound.record is None
    assert await states(store, failures) == [State.FAILED] * 3
    assert not await store.all("select from requeue")


async def test_failed_samples_run_again_and_the_record_says_who_and_what(store, engine, failures):
    bound = requeue(engine, Wish("B1", causes=("http_500",)), who="ada")
    assert bound.count == 2
    assert await states(store, failures) == [State.QUEUED] * 2 + [State.FAILED]
    record = await store.one("select * from requeue")
    assert (record.id, record.who, record.what) == (bound.record, "ada", {"dataset": "B1", "causes": ["http_500"]})
    assert len(await store.claim(failures)) == 2
    await store.check_counters()


async def test_a_requeue_is_taken_back(store, engine, failures):
    bound = requeue(engine, Wish("B1", lane="long"))
    [first, *others] = failures
    await store.claimed(first, lane=Lane.LONG)
    assert undo(engine, bound.record) == 2
    assert undo(engine, bound.record) == 0
    assert await states(store, failures) == [State.RUNNING] + [State.FAILED] * 2
    assert [(await store.sample(i)).lane for i in others] == [Lane.SHORT] * 2
    await store.check_counters()


async def test_another_lane_or_maximum_changes_the_bound(store, engine, failures):
    assert requeue(engine, Wish("B1", lane="long"), dry_run=True).max_tokens == 3 * LONG_MAX
    assert requeue(engine, Wish("B1", max_tokens=7), dry_run=True).max_tokens == 3 * 7


async def test_a_wish_for_one_provider_or_lane_takes_no_others(store, engine, failures):
    assert requeue(engine, Wish("B1", provider="Q"), dry_run=True).causes == {"content_filtered": 1}
    assert requeue(engine, Wish("B1", from_lane="long"), dry_run=True).count == 0
    assert requeue(engine, Wish("B1", older_than_s=3_600.0), dry_run=True).count == 0


async def test_truncated_rows_give_their_tokens_back_to_the_budget(store, engine):
    [s] = await store.samples(await store.dataset(token_budget=LONG_MAX))
    await store.settle(done(await store.claimed(s), SHORT_MAX, row=stored(SHORT_MAX, truncated=True)))
    bound = requeue(engine, Wish("B1", truncated=True, lane="long"))
    assert (bound.count, bound.causes, bound.max_tokens) == (1, {"truncated": 1}, LONG_MAX)
    assert (await store.one("select stored_tokens, done from dataset")) == (0, 0)
    assert (await store.claimed(s, lane=Lane.LONG)).max_tokens == LONG_MAX
    await store.check_counters()


async def test_rows_are_chosen_by_grade_by_being_cut_or_by_both(store, engine):
    ids = await store.samples(await store.dataset(), 4)
    taken = await store.claim(ids)
    rows = [stored(grade=grade, truncated=cut) for grade, cut in ((1, True), (1, False), (3, True), (3, False))]
    await store.settle(*[done(taken[i], row=row) for i, row in zip(ids, rows, strict=True)])
    for wish, n in ((Wish("B1", truncated=True), 2), (Wish("B1", grades=("drift",)), 2),
                    (Wish("B1", truncated=True, grades=("drift",)), 1), (Wish("B1", grades=("drift", "verified")), 4)):
        assert requeue(engine, wish, dry_run=True).count == n, wish


async def test_a_row_that_was_asked_again_by_mistake_comes_back_as_it_was(store, engine):
    ids = await store.samples(await store.dataset(), 3)
    taken = await store.claim(ids)
    await store.settle(*[done(taken[i], 30, row=stored(30, truncated=True, flags="a,b")) for i in ids])
    before = await store.all("select * from completion order by sample_id")
    sums = await store.one("select done, stored_tokens, useful_tokens, billed_tokens from dataset")
    bound = requeue(engine, Wish("B1", truncated=True))
    assert bound.count == 3
    await store.claimed(ids[0])
    assert undo(engine, bound.record) == 2
    assert await store.all("select * from completion order by sample_id") == before[1:]
    assert await states(store, ids) == [State.RUNNING] + [State.DONE] * 2
    assert [row.sample_id for row in await store.all("select sample_id from partial")] == ids[:1]
    left = await store.one("select done, stored_tokens, useful_tokens, billed_tokens from dataset")
    assert left == (2, sums.stored_tokens - 30, sums.useful_tokens - 30, sums.billed_tokens)
    await store.check_counters()


async def test_nothing_to_ask_again_leaves_no_record(store, engine):
    await store.dataset()
    bound = requeue(engine, Wish("B1"))
    assert (bound.count, bound.record, bound.max_usd) == (0, None, None)
    assert not await store.all("select from requeue")


async def test_a_closed_dataset_is_opened_first(store, engine, failures):
    await store.do(datasets.close, (await store.one("select id from dataset")).id, Closed.OPERATOR)
    with pytest.raises(SettingsError, match=r"closed \(operator\).*draftmill open B1"):
        requeue(engine, Wish("B1"))
    assert requeue(engine, Wish("B1"), dry_run=True).count == 3


@pytest.mark.parametrize(("wish", "cause"), [
    (Wish("none"), "no dataset 'none'"), (Wish("B1", lane="middle"), "no lane 'middle'"),
    (Wish("B1", from_lane="x"), "no lane 'x'"), (Wish("B1", grades=("best",)), "no grade")])
async def test_what_does_not_exist_is_told(store, engine, wish, cause):
    await store.dataset()
    with pytest.raises(SettingsError, match=cause):
        requeue(engine, wish)
