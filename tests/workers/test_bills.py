"""What a lost call cost is found in its provider's books, whoever made the call, and the ledger is mended by it."""

from collections.abc import Mapping
from typing import Any

import pytest

from models.states import Event
from models.store.bills import Unbilled
from tests.hand import Hand, ended
from workers import bills
from workers.providers.base import Provider
from workers.providers.openrouter import OpenRouter

CALL = Unbilled(1, 1, 1, "home", "gen-1")
BOOKED = {"native_tokens_prompt": 7, "native_tokens_completion": 90, "total_cost": 0.25, "provider_name": "Novita"}


class Books(OpenRouter):
    """An account whose books hold what a test says."""

    def __init__(self, pages: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__("http://127.0.0.1:9", lambda: None, 1)
        self.pages, self.asked = pages, list[str]()

    async def generation(self, generation_id: str) -> dict[str, Any]:
        self.asked.append(generation_id)
        return dict(self.pages.get(generation_id, {}))


async def lost(store: Hand, *names: str) -> None:
    d = await store.dataset()
    claims = await store.claim(await store.samples(d, len(names)))
    await store.settle(*(ended(claim, Event.RELEASE, "shutdown", basis="estimate", prompt_tokens=5, completion_tokens=400,
                               cost_nusd=10**9, generation_id=name, has_bill=True)
                         for claim, name in zip(claims.values(), names, strict=True)))


async def test_a_call_of_a_worker_that_is_gone_gets_its_true_bill_from_the_next(store: Hand) -> None:
    await lost(store, "gen-1", "gen-2")
    books = Books({"gen-1": BOOKED})

    async def provider_of(_: Unbilled) -> Provider | None:
        return books
    assert await bills.collect(store.engine, provider_of) == 1
    assert sorted(books.asked) == ["gen-1", "gen-2"]
    rows = await store.all("select basis, prompt_tokens, completion_tokens, cost_nusd, provider from attempt "
                           "order by generation_id")
    assert [tuple(row) for row in rows] == [("usage", 7, 90, 250_000_000, "Novita"), ("estimate", 5, 400, 10**9, "")]
    await store.check_counters()
    assert await bills.collect(store.engine, provider_of) == 0
    assert len(books.asked) == 2        # the one is known, the other not due yet


async def test_a_call_of_an_account_that_is_not_known_here_keeps_its_estimate(store: Hand) -> None:
    await lost(store, "gen-1")

    async def nobody(_: Unbilled) -> Provider | None:
        return None
    assert await bills.collect(store.engine, nobody) == 0
    assert (await store.one("select basis from attempt")).basis == "estimate"


async def test_a_thousand_calls_are_asked_for_a_few_at_a_time(store: Hand) -> None:
    await lost(store, *(f"gen-{i}" for i in range(3 * bills.MOST)))
    books = Books({f"gen-{i}": BOOKED for i in range(3 * bills.MOST)})

    async def provider_of(_: Unbilled) -> Provider | None:
        return books
    assert [await bills.collect(store.engine, provider_of) for _ in range(4)] == [bills.MOST] * 3 + [0]


@pytest.mark.parametrize("page", [
    {}, {**BOOKED, "total_cost": None}, {**BOOKED, "total_cost": "0.25"},
    {**BOOKED, "total_cost": -1}, {**BOOKED, "total_cost": 1e9},
    {**BOOKED, "total_cost": float("nan")}, {**BOOKED, "native_tokens_prompt": None}, {**BOOKED, "native_tokens_prompt": "7"},
    {**BOOKED, "native_tokens_completion": -1}, {**BOOKED, "native_tokens_completion": 10**12},
    {**BOOKED, "native_tokens_completion": 1.5}])
def test_what_books_cannot_mean_is_not_believed(page: dict[str, Any]) -> None:
    assert bills.read(CALL, page) is None


def test_a_name_out_of_the_books_is_cleaned() -> None:
    found = bills.read(CALL, {**BOOKED, "provider_name": "=N\x00\ud800ovita\u2028"})
    assert found is not None
    assert found.provider == "Novita"
