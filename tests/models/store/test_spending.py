"""Where tokens and money went."""

from models.states import Event, Lane
from models.store import bills, spending, totals
from models.store.bills import Bill
from tests.hand import LONG_MAX, SHORT_MAX, Hand, done, ended, stored


async def spent(store: Hand) -> totals.DatasetTotals:
    [found] = await store.do(totals.datasets)
    await store.do(spending.add, [found])
    return found  # type: ignore[no-any-return]


async def test_waste_is_told_by_kind_and_useful_rows_are_none(store: Hand) -> None:
    d = await store.dataset()
    good, cut, bad, lost, broken = (await store.claim(await store.samples(d, 5))).values()
    paid = {"basis": "usage", "completion_tokens": 7, "cost_nusd": 7_000}
    await store.settle(
        done(good), done(cut, row=stored(10, truncated=True, trainable=False)), done(bad, row=stored(10, trainable=False)),
        ended(lost, Event.RETRY, "timeout", **{**paid, "basis": "estimate"}), ended(broken, Event.RETRY, "aborted", **paid))
    waste = (await spent(store)).waste
    assert {kind: w["tokens"] for kind, w in waste.items()} == {
        "truncated": 10, "rejected": 10, "lost": 7, "retries": 7, "replaced": 0}
    assert waste["lost"]["usd"] == 7e-6


async def test_a_promoted_answer_is_waste_until_it_is_gone_on_from(store: Hand) -> None:
    d = await store.dataset()
    [i] = await store.samples(d)
    claim = await store.claimed(i)
    await store.settle(done(claim, 100, event=Event.PROMOTE, row=stored(100)))
    assert (await spent(store)).waste["truncated"]["tokens"] == 100
    longer = await store.claimed(i, lane=Lane.LONG)
    await store.settle(done(longer, 20, row=stored(120, flags="continued")))
    found = await spent(store)
    assert (found.waste["truncated"]["tokens"], found.saved_tokens) == (0, 100)


async def test_a_dataset_is_wasteful_past_its_share_of_the_budget(store: Hand) -> None:
    d = await store.dataset(token_budget=200 * SHORT_MAX, waste_bound=0.1)
    one, two = (await store.claim(await store.samples(d, 2))).values()
    await store.settle(done(one, 20 * SHORT_MAX, row=stored(20 * SHORT_MAX, trainable=False)))
    assert await store.do(spending.wasteful) == []
    await store.settle(done(two, 1, row=stored(1, trainable=False)))
    assert await store.do(spending.wasteful) == [d]


async def test_a_small_budget_is_given_a_hundred_maxima_before_it_is_called_wasteful(store: Hand) -> None:
    d = await store.dataset(token_budget=2 * LONG_MAX, waste_bound=0.5)
    one, two = (await store.claim(await store.samples(d, 2))).values()
    await store.settle(done(one, 50 * SHORT_MAX, row=stored(1, trainable=False)))
    assert await store.do(spending.wasteful) == []
    await store.settle(done(two, 1, row=stored(1, trainable=False)))
    assert await store.do(spending.wasteful) == [d]


async def test_a_bill_takes_the_place_of_an_estimate_once(store: Hand) -> None:
    d = await store.dataset()
    lost, good = (await store.claim(await store.samples(d, 2))).values()
    await store.settle(ended(lost, Event.RETRY, "timeout", basis="estimate", prompt_tokens=3, completion_tokens=90, cost_nusd=9),
                       done(good))
    found = [Bill(lost.id, lost.fence, 4, 50, 5, "Q"), Bill(good.id, good.fence, 0, 0, 0)]
    assert [await store.do(bills.correct, found), await store.do(bills.correct, found)] == [1, 0]
    row = await store.one("select * from attempt where sample_id = :id", id=lost.id)
    assert (row.basis, row.prompt_tokens, row.completion_tokens, row.cost_nusd, row.provider) == ("usage", 4, 50, 5, "Q")
    await store.check_counters()
