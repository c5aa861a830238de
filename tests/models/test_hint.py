import asyncio
import json

import pytest
from redis import Redis

from models.errors import BrokerAway
from models.hint import BATCH, TASK, Hints, broker_settings, hint, queue_of
from models.states import Lane

PREFIX = "t:"


@pytest.fixture
async def hints(redis_url):
    hints = Hints(redis_url, PREFIX)
    yield hints
    await hints.close()


def test_a_queue_is_named_by_lane_and_dataset():
    assert queue_of(Lane.SHORT, "B1") == "short.B1"
    assert queue_of(Lane.LONG, "web-2.x") == "long.web-2.x"


def test_a_hint_names_a_sample_and_carries_nothing_else():
    message = json.loads(hint("long.B1", "B1", Lane.LONG, 7))
    assert json.loads(message["body"]) == [[7, "B1", "long"], {}, {}]
    assert message["headers"]["task"] == TASK
    assert set(message["headers"]) == {"lang", "task", "id", "root_id", "argsrepr", "kwargsrepr"}


def test_two_hints_of_one_sample_have_different_ids():
    one, two = (json.loads(hint("short.B1", "B1", Lane.SHORT, 7)) for _ in range(2))
    assert one["headers"]["id"] != two["headers"]["id"]
    assert one["properties"]["delivery_tag"] != two["properties"]["delivery_tag"]


async def test_hints_wait_in_order_under_the_prefix(hints, redis_url):
    ids = list(range(2 * BATCH + 1))
    await hints.send("short.B1", "B1", Lane.SHORT, ids)
    assert await hints.lengths(["short.B1", "long.B1"]) == {"short.B1": len(ids), "long.B1": 0}
    with Redis.from_url(redis_url) as redis:
        assert redis.keys() == [b"t:short.B1"]
        waiting = [json.loads(json.loads(raw)["body"])[0][0] for raw in redis.lrange("t:short.B1", 0, -1)]
    assert waiting[::-1] == ids


async def test_purging_one_queue_leaves_the_others(hints):
    await hints.send("short.B1", "B1", Lane.SHORT, [1, 2])
    await hints.send("short.B2", "B2", Lane.SHORT, [3])
    await hints.purge("short.B1")
    assert await hints.lengths(["short.B1", "short.B2"]) == {"short.B1": 0, "short.B2": 1}


async def test_sending_nothing_asks_nothing(hints):
    await hints.send("short.B1", "B1", Lane.SHORT, [])
    assert await hints.lengths([]) == {}


async def test_a_broker_that_is_away_is_a_typed_error():
    hints = Hints("redis://127.0.0.1:1/0", PREFIX)
    with pytest.raises(BrokerAway, match="Redis cannot be used"):
        await hints.lengths(["short.B1"])
    await hints.close()


async def test_a_broker_that_never_answers_is_given_up_at_the_deadline():
    async def silence(reader, writer):
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silence, "127.0.0.1", 0)
    hints = Hints(f"redis://:secret@127.0.0.1:{server.sockets[0].getsockname()[1]}/0", PREFIX, deadline_s=0.2)
    with pytest.raises(BrokerAway) as raised:
        await hints.purge("short.B1")
    assert "secret" not in str(raised.value)
    await hints.close()
    server.close()


async def test_a_full_broker_is_a_typed_error(hints, redis_url):
    with Redis.from_url(redis_url) as redis:
        redis.config_set("maxmemory", "1mb")
        try:
            with pytest.raises(BrokerAway, match="OutOfMemory"):
                await hints.send("short.B1", "B1", Lane.SHORT, range(20_000))
        finally:
            redis.config_set("maxmemory", "0")


def test_every_process_on_the_broker_shares_prefix_and_steps_and_speaks_json_only():
    settings = broker_settings("redis://x", "p:")
    assert settings["broker_transport_options"]["global_keyprefix"] == "p:"
    assert settings["broker_transport_options"]["priority_steps"] == [0]
    assert settings["accept_content"] == ["json"]
    assert settings["result_backend"] is None
