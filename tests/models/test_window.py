"""The window of hints in Redis, against real services."""

import json

import pytest
import redis

from models.errors import BrokerAway
from models.hint import Hints, queue_of
from models.states import Lane
from models.store import datasets
from models.window import SPARE, top_up
from tests.hand import SHORT_MAX, done

PREFIX = "test:"


@pytest.fixture
async def hints(redis_url):
    hints = Hints(redis_url, PREFIX)
    yield hints
    await hints.close()


@pytest.fixture
def queue(redis_url):
    """The ids that wait in a dataset's queue, oldest first."""
    client = redis.Redis.from_url(redis_url)

    def ids(dataset="B1", lane=Lane.SHORT):
        messages = client.lrange(PREFIX + queue_of(lane, dataset), 0, -1)
        return [json.loads(json.loads(m)["body"])[0][0] for m in reversed(messages)]

    yield ids
    client.close()


@pytest.fixture
def fill(store, hints):
    async def fill(window):
        return await top_up(store.engine, hints, await store.do(datasets.every), window)
    return fill


async def test_a_window_is_filled_and_no_more(store, fill, queue):
    ids = await store.samples(await store.dataset(), 50)
    assert await fill(20) == 20
    assert queue() == ids[:20]
    assert await fill(20) == 0


async def test_a_window_is_filled_again_once_half_of_it_is_gone(store, fill, queue, redis_url):
    ids = await store.samples(await store.dataset(), 100)
    await fill(20)
    with redis.Redis.from_url(redis_url) as client:
        client.rpop(PREFIX + "short.B1", 9)
        assert await fill(20) == 0
        client.rpop(PREFIX + "short.B1", 1)
    assert await fill(20) == 10
    assert queue() == ids[10:30]


async def test_lanes_and_datasets_have_windows_of_their_own(store, fill, queue):
    for name in ("B1", "B2"):
        d = await store.dataset(name)
        await store.samples(d, 5)
        await store.samples(d, 5, lane=Lane.LONG, prefix="l")
    assert await fill(3) == 12
    assert len(queue("B2", Lane.LONG)) == 3


async def test_what_is_running_or_done_is_not_hinted(store, fill, queue):
    a, b, c = await store.samples(await store.dataset(), 3)
    await store.settle(done(await store.claimed(a)))
    await store.claimed(b)
    assert await fill(10) == 1
    assert queue() == [c]


async def test_a_lost_redis_is_rebuilt(store, fill, queue, redis_url):
    ids = await store.samples(await store.dataset(), 5)
    await fill(10)
    with redis.Redis.from_url(redis_url) as client:
        client.flushall()
    assert await fill(10) == 0                              # their hints may still be on their way
    await store.all("update sample set hinted_at = hinted_at - interval '31 s'")
    assert await fill(10) == 5
    assert queue() == ids


async def test_no_more_is_hinted_than_a_budget_has_room_for(store, fill):
    d = await store.dataset(token_budget=7 * SHORT_MAX)
    await store.samples(d, 100)
    assert await fill(1_000) == 7 + SPARE


async def test_samples_of_a_broker_that_is_away_are_hinted_later(store):
    d = await store.dataset()
    await store.samples(d, 5)
    away = Hints("redis://127.0.0.1:1/0", PREFIX, deadline_s=1.0)
    with pytest.raises(BrokerAway):
        await top_up(store.engine, away, await store.do(datasets.every), 10)
    await away.close()
    assert (await store.one("select count(*) as n from sample where hinted_at is null")).n == 5

