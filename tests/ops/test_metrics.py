"""What Prometheus is told: read from real services, under a deadline, behind a token, and true."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import SecretStr
from redis.asyncio import Redis

from models.base import connect_async
from models.errors import SettingsError
from models.hint import Hints
from models.settings import Settings
from models.states import Event, Lane
from models.store import datasets, providers, sweeps
from ops.families import FAMILIES
from ops.metrics import Meter, serve
from tests.hand import Hand, done, ended
from tests.proxy import Proxy
from workers.limit import Limit
from workers.shared import Shared

Told = dict[str, dict[tuple[str, ...], float]]


def told(meter: Meter) -> Told:
    """family -> values of its labels, in the order of FAMILIES -> value."""
    found: Told = {name: {} for name in FAMILIES}
    for family in text_string_to_metric_families(meter.exposition().decode()):
        name = family.name.removeprefix("draftmill_")
        for sample in family.samples:
            found[name][tuple(sample.labels[label] for label in FAMILIES[name].labels)] = sample.value
    return found


@contextmanager
def metering(database: str, redis_url: str, **more: Any) -> Iterator[Meter]:
    meter = Meter(Settings(database_url=SecretStr(database), redis_url=SecretStr(redis_url)), **more)
    try:
        yield meter
    finally:
        meter.close()


async def paused(redis_url: str, account: str, reason: str) -> None:
    def pause(_: Limit | None, __: float) -> tuple[Limit, int]:
        limit = Limit.new(40, 100)
        limit.halted = reason
        return limit, 0

    redis: Redis = Redis.from_url(redis_url)
    await Shared(redis, "draftmill:", account).change(pause)
    await redis.aclose()


async def a_life(hand: Hand) -> None:
    """B1: one done, one failed, one snoozed, one running, two queued in the long lane; B2 is closed with one queued."""
    first = await hand.dataset("B1", token_budget=100_000, money_budget_usd=2.5)
    closed = await hand.dataset("B2")
    worker = await hand.do(sweeps.join, name="short-1", host="a", pid=1, lane=0, concurrency=8)
    await hand.do(sweeps.beat, worker, 3, {"spool": 2, "lag_ms": 40, "token_wait_ms": 0})
    ids = await hand.samples(first, 4)
    await hand.samples(first, 2, lane=Lane.LONG, prefix="l")
    held = await hand.claim(ids, worker)
    await hand.settle(done(held[ids[0]], 10), ended(held[ids[1]], Event.DROP, "refused"),
                      ended(held[ids[2]], Event.SNOOZE, "http_429", wait_s=60))
    await hand.do(providers.exclude, first, {"Odd": "counts that do not match"})
    await hand.samples(closed, 1)
    await hand.do(datasets.close, closed, "operator")


async def test_a_scrape_says_what_the_tables_and_redis_hold(database: str, redis_url: str) -> None:
    engine = connect_async(database, size=2)
    await a_life(Hand(engine))
    hints = Hints(redis_url, "draftmill:")
    await hints.send("long.B1", "B1", Lane.LONG, [5, 6])
    await hints.close()
    await paused(redis_url, "home", "no_credit")
    await engine.dispose()
    with metering(database, redis_url) as meter:
        found = told(meter)
    assert found["source_up"] == {("database",): 1, ("ledger",): 1, ("redis",): 1}
    assert found["samples"][("B1", "done")] == found["samples"][("B1", "failed")] == found["samples"][("B1", "running")] == 1
    assert found["dataset_open"] == {("B1",): 1, ("B2",): 0}
    assert found["dataset_closed"] == {("B2", "operator"): 1}
    assert found["open_samples"] == {("B1", "short"): 1, ("B1", "long"): 2}     # a closed dataset's samples wait for nobody
    assert found["snoozed_samples"] == {("B1", "short"): 1, ("B1", "long"): 0}
    assert found["in_flight"] == {("B1", "short"): 1}
    assert found["queue_length"][("B1", "long")] == 2
    assert found["billed_tokens"][("B1",)] == 13
    assert found["useful_tokens"][("B1",)] == 10
    assert found["token_budget"] == {("B1",): 100_000}
    assert found["money_budget_dollars"] == {("B1",): 2.5}
    assert found["spent_dollars"][("B1",)] == pytest.approx(1e-5)
    assert found["rows"] == {("B1", "engine"): 1}
    assert found["failed_samples"] == {("B1", "refused"): 1}
    assert found["attempts"] == {("B1", "short", "done", "ok"): 1, ("B1", "short", "drop", "refused"): 1,
                                 ("B1", "short", "snooze", "http_429"): 1}
    assert found["provider_calls"][("B1", "P", "", "ok")] == 1
    assert found["provider_excluded"] == {("B1", "Odd"): 1}
    assert found["account_limit"] == {("home",): 40}
    assert found["account_paused"] == {("home", "no_credit"): 1}
    [(labels, age)] = found["worker_heartbeat_age_seconds"].items()
    assert labels[1:] == ("short-1", "a", "short")
    assert 0 <= age < 60
    assert found["worker_spool"][labels] == 2
    assert found["worker_loop_lag_seconds"][labels] == 0.04
    assert found["reaper_leading"] == {(): 0}


async def test_a_leading_reaper_and_the_dead_are_seen(database: str, redis_url: str) -> None:
    engine = connect_async(database, size=2)
    async with engine.connect() as lock:
        assert await lock.run_sync(sweeps.lead, 60.0)
        hand = Hand(engine)
        worker = await hand.do(sweeps.join, name="short-1", host="a", pid=1, lane=0, concurrency=8)
        await hand.do(sweeps.bury, 1e9, [worker])
        with metering(database, redis_url) as meter:
            found = told(meter)
    await engine.dispose()
    assert found["reaper_leading"] == {(): 1}
    assert found["workers_died"] == {(): 1}
    assert found["worker_heartbeat_age_seconds"] == {}


async def test_a_source_that_is_away_is_told_and_its_old_values_are_not(database: str, redis_url: str) -> None:
    engine = connect_async(database, size=2)
    await a_life(Hand(engine))
    await engine.dispose()
    async with Proxy(database) as away:
        with metering(away.url, redis_url, fresh_s=0, slow_s=0, deadline_s=3) as meter:
            assert (await asyncio.to_thread(told, meter))["samples"]
            away.cut()
            found = await asyncio.to_thread(told, meter)
            assert found["source_up"][("database",)] == found["source_up"][("ledger",)] == 0
            assert found["samples"] == found["attempts"] == {}
            away.mend()
            assert (await asyncio.to_thread(told, meter))["samples"]


def test_a_source_that_does_not_answer_holds_up_the_others_for_the_deadline_alone(database: str, redis_url: str) -> None:
    with metering(database, redis_url, deadline_s=2, fresh_s=0) as meter:
        answer, reads = threading.Event(), []
        [slow] = [s for s in meter._sources if s.name == "redis"]

        def stuck() -> dict[str, Any]:
            reads.append(1)
            assert answer.wait(60)
            return {"account_limit": [(("home",), 7.0)]}

        slow.read = stuck
        for _ in range(2):
            found = told(meter)
            assert found["source_up"][("redis",)] == 0
            assert found["source_up"][("database",)] == 1
        assert len(reads) == 1      # the next scrape waits for the same reading
        answer.set()
        assert slow.future is not None
        slow.future.result(60)
        assert told(meter)["account_limit"] == {("home",): 7}


def test_scrapes_close_together_share_one_reading(database: str, redis_url: str) -> None:
    with metering(database, redis_url, fresh_s=3600, slow_s=3600) as meter:
        reads = []
        for source in meter._sources:
            source.read = lambda read=source.read, name=source.name: (reads.append(name), read())[1]
        threads = [threading.Thread(target=meter.exposition) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(reads) == ["database", "ledger", "redis"]


@contextmanager
def served(settings: Settings) -> Iterator[Callable[..., tuple[int, str]]]:
    server = serve(settings, "127.0.0.1", 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    def ask(path: str, **headers: str) -> tuple[int, str]:
        connection = HTTPConnection("127.0.0.1", server.server_port, timeout=30)
        connection.request("GET", path, headers=headers)
        reply = connection.getresponse()
        return reply.status, reply.read().decode()

    try:
        yield ask
    finally:
        server.shutdown()
        server.server_close()


def test_the_port_answers_whoever_shows_the_token(database: str, redis_url: str) -> None:
    settings = Settings(database_url=SecretStr(database), redis_url=SecretStr(redis_url), metrics_token=SecretStr("secret-token"))
    with served(settings) as ask:
        assert ask("/metrics")[0] == 401
        assert ask("/metrics", Authorization="Bearer wrong")[0] == 401
        assert ask("/healthcheck") == (200, "ok\n")
        status, body = ask("/metrics", Authorization="Bearer secret-token")
        assert status == 200
        assert 'draftmill_source_up{source="database"} 1.0' in body
        assert ask("/else", Authorization="Bearer secret-token")[0] == 404


def test_the_loopback_needs_no_token_and_any_other_address_does(database: str, redis_url: str) -> None:
    settings = Settings(database_url=SecretStr(database), redis_url=SecretStr(redis_url))
    with served(settings) as ask:
        assert ask("/metrics")[0] == 200
    with pytest.raises(SettingsError, match="DRAFTMILL_METRICS_TOKEN"):
        serve(settings, "0.0.0.0", 0)
