"""One sum of dollars for several datasets."""

from models.store import purses
from tests.hand import SHORT_MAX, Hand, done

USD = 1_000_000_000
NUSD_PER_TOKEN = 10_000      # the plan's default: 10 dollars a million


async def money(store: Hand, *ids: int) -> list[int | None]:
    rows = {row.id: row.money_budget_nusd for row in await store.all("select id, money_budget_nusd from dataset")}
    return [rows[i] for i in ids]


async def test_a_purse_is_dealt_to_those_that_still_want(store: Hand) -> None:
    a, b, c = [await store.dataset(name) for name in ("A", "B", "C")]
    await store.samples(a, 5)
    await store.samples(b, 5)
    await store.do(purses.share, [a, b, c], 3.0)
    assert await money(store, a, b, c) == [3 * USD // 2, 3 * USD // 2, 0]


async def test_what_is_held_and_spent_is_kept_and_the_rest_dealt_anew(store: Hand) -> None:
    a, b = [await store.dataset(name) for name in ("A", "B")]
    [first, second] = await store.samples(a, 2)
    await store.samples(b, 5)
    await store.do(purses.share, [a, b], 1.0)
    claims = await store.claim([first, second])
    held = 2 * SHORT_MAX * NUSD_PER_TOKEN
    await store.do(purses.deal)
    assert await money(store, a, b) == [held, USD - held]
    await store.settle(*[done(claim) for claim in claims.values()])
    await store.do(purses.deal)
    assert await money(store, a, b) == [2 * 10_000, USD - 2 * 10_000]


async def test_a_dataset_keeps_to_its_own_budget_too(store: Hand) -> None:
    a, b = await store.dataset("A", money_budget_usd=0.1), await store.dataset("B")
    await store.samples(a, 1)
    await store.samples(b, 1)
    await store.do(purses.share, [a, b], 1.0)
    assert await money(store, a, b) == [USD // 10, USD // 2]


async def test_without_a_purse_nothing_is_dealt(store: Hand) -> None:
    a, b = await store.dataset("A", money_budget_usd=0.5), await store.dataset("B")
    await store.do(purses.deal)
    assert await money(store, a, b) == [USD // 2, None]
