"""Providers of a dataset, from its newest calls."""

from models.health import Health
from models.states import Event
from models.store import datasets, providers
from tests.hand import Hand, done, ended, stored


async def test_health_is_counted_by_provider_and_limits_are_nobodys_fault(store: Hand) -> None:
    d = await store.dataset()
    good, cut, bad, broken, refused, full = (await store.claim(await store.samples(d, 6))).values()
    await store.settle(
        done(good), done(cut, row=stored(10, truncated=True)),
        done(bad, row=stored(10, flags="token_count_mismatch"), provider="Q"),
        ended(broken, Event.RETRY, "provider_error", provider="Q"), ended(refused, Event.DROP, "refused", provider="Q"),
        ended(full, Event.SNOOZE, "rate_limited", provider="Q"))
    assert sorted(await store.do(providers.health, d), key=lambda h: h.provider) == [
        Health("P", calls=2, ok=2, rows=2, mismatched=0, cut=1, refused=0),
        Health("Q", calls=3, ok=1, rows=1, mismatched=1, cut=0, refused=1)]


async def test_an_exclusion_outlives_new_settings_and_is_told_to_workers(store: Hand) -> None:
    d = await store.dataset()
    await store.do(providers.exclude, d, {"Q": "calls that fail"})
    await store.do(providers.exclude, d, {"R": "answers that are cut"})
    assert await store.dataset(token_budget=1_000) == d
    [known] = await store.do(datasets.every)
    assert known.excluded == {"Q": "calls that fail", "R": "answers that are cut"}
