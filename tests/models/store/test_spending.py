"""Where tokens and money went."""

from sqlalchemy import text

from models.states import Event, Lane
from models.store import bills, spending, totals
from models.store.bills import Bill, Unbilled
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


async def test_what_was_estimated_under_a_name_is_asked_for_until_its_bill_is_there(store: Hand) -> None:
    d = await store.dataset()
    named, nameless, engines, billed = (await store.claim(await store.samples(d, 4))).values()
    lost = {"event": Event.RETRY, "basis": "estimate"}
    await store.settle(
        ended(named, **lost, generation_id="gen-1", has_bill=True), ended(nameless, **lost, has_bill=True),
        ended(engines, **lost, generation_id="gen-2"), done(billed, generation_id="gen-3", has_bill=True))
    assert await store.do(bills.due, 10) == [Unbilled(named.id, named.fence, d, "home", "gen-1")]
    assert await store.do(bills.due, 10) == []          # somebody asks for it just now
    await _later(store, 60)
    [again] = await store.do(bills.due, 10)
    await store.do(bills.correct, [Bill(again.id, again.fence, 1, 1, 1)])
    assert await store.all("select from attempt where bill_at is not null") == []


async def test_a_bill_that_never_comes_is_asked_for_a_dozen_times_over_two_days(store: Hand) -> None:
    d = await store.dataset()
    [claim] = (await store.claim(await store.samples(d))).values()
    await store.settle(ended(claim, Event.RETRY, basis="estimate", generation_id="gen-1", has_bill=True))
    asked = 0
    while await store.do(bills.due, 10):
        asked += 1
        waits = await store.one("select extract(epoch from bill_at - clock_timestamp())::float8 as s from attempt")
        await _later(store, waits.s or 0)
    assert 8 <= asked <= 16


async def test_calls_that_wait_for_their_bill_are_shared_out(store: Hand) -> None:
    d = await store.dataset()
    claims = await store.claim(await store.samples(d, 7))
    await store.settle(*(ended(c, Event.RETRY, basis="estimate", generation_id=f"gen-{c.id}", has_bill=True)
                         for c in claims.values()))
    first, second = await store.do(bills.due, 4), await store.do(bills.due, 4)
    assert (len(first), len(second)) == (4, 3)
    assert {c.id for c in first + second} == set(claims)


async def test_a_bill_mends_the_cost_of_the_row_it_paid_for(store: Hand) -> None:
    d = await store.dataset()
    [claim] = (await store.claim(await store.samples(d))).values()
    await store.settle(done(claim, basis="estimate", cost_nusd=7))
    await store.do(bills.correct, [Bill(claim.id, claim.fence, 4, 11, 500)])
    row = await store.one("select billed_prompt_tokens, billed_tokens, cost_nusd from completion")
    assert tuple(row) == (4, 11, 500)
    await store.check_counters()


async def _later(store: Hand, seconds: float) -> None:
    """As if so much time had passed."""
    async with store.engine.begin() as connection:
        await connection.execute(text("""
            update attempt set ended_at = ended_at - make_interval(secs => :s), bill_at = bill_at - make_interval(secs => :s)
            where bill_at is not null"""), {"s": seconds})
