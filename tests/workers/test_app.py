"""The worker as a whole: its queues at run time, a Redis that dies, is emptied or falls silent, and its secrets."""

import asyncio
import json
import select
import signal
import socket
import threading
from contextlib import suppress

import pytest
from redis import Redis

from models.errors import SettingsError
from models.hint import Hints
from models.settings import Settings
from workers.app import make_app


def test_an_app_without_a_broker_is_refused():
    with pytest.raises(SettingsError, match="DRAFTMILL_REDIS_URL"):
        make_app(Settings(redis_url=None))


def test_queues_are_added_and_removed_while_it_runs(crew, send, waiting, redis_url, until):
    for name in ("B1", "B2"):
        send(redis_url, name, range(5))
    worker = crew(redis_url, slots=10, queues=["short.B1"], seconds_each=0.01)
    until(lambda: len(worker.ids("ended")) == 5)
    assert waiting(redis_url, "B2") == 5
    worker.want(["short.B2"])
    until(lambda: len(worker.ids("ended")) == 10)
    until(lambda: "Canceling queue short.B1" in worker.output())
    send(redis_url, "B1", range(5, 10))
    send(redis_url, "B2", range(5, 10))
    until(lambda: sum(t.dataset == "B2" for t in worker.told("ended")) == 10)
    assert waiting(redis_url, "B1") == 5
    worker.want(["short.B1", "short.B2"])
    until(lambda: len(worker.ids("ended")) == 20)


def test_a_queue_leaves_nothing_in_redis_but_its_list(crew, send, redis_url, until):
    send(redis_url, "B1", range(5))
    worker = crew(redis_url, slots=10, queues=["short.B1"], seconds_each=0.01)
    until(lambda: len(worker.ids("ended")) == 5)
    with Redis.from_url(redis_url) as redis:
        assert not [key for key in redis.scan_iter() if b"B1" in key]
        assert not [key for key in redis.scan_iter("_kombu.binding.*") if b"B1" in b"".join(redis.smembers(key))]


def test_everybody_stops_consuming_a_cancelled_queue_at_once(crew, redis_url, until):
    workers = [crew(redis_url, slots=10, queues=["short.B1"], seconds_each=0.01) for _ in range(2)]

    async def cancel():
        hints = Hints(redis_url, "draftmill:")
        await hints.cancel("short.B1")
        await hints.close()

    for worker in workers:
        until(lambda worker=worker: "Started consuming from short.B1" in worker.output())
    asyncio.run(cancel())
    for worker in workers:
        until(lambda worker=worker: "Canceling queue short.B1" in worker.output())


@pytest.mark.parametrize(("slots", "empty"), [
    (50, True), (5, False), pytest.param(50, False, marks=pytest.mark.slow), pytest.param(5, True, marks=pytest.mark.slow)])
def test_a_killed_redis_is_outlived_with_free_and_with_full_slots(crew, send, broker, until, slots, empty):
    send(broker.url, "B1", range(10))
    worker = crew(broker.url, slots=slots, queues=["short.B1"], seconds_each=1)
    until(lambda: len(worker.ids("began")) == min(slots, 10))
    broker.kill()
    until(lambda: len(worker.ids("ended")) == min(slots, 10))   # what runs goes on without Redis
    broker.start(empty=empty)
    send(broker.url, "B1", range(100, 110))
    until(lambda: set(range(100, 110)) <= set(worker.ids("ended")))
    assert worker.process.poll() is None
    assert len(worker.ids("ended")) == len(set(worker.ids("ended")))
    assert max(worker.in_flight()) <= slots


def test_a_flushed_redis_needs_no_restart(crew, send, redis_url, until):
    send(redis_url, "B1", range(10))
    worker = crew(redis_url, slots=5, queues=["short.B1"], seconds_each=0.5)
    until(lambda: len(worker.ids("began")) == 5)
    with Redis.from_url(redis_url) as redis:
        redis.flushall()
    send(redis_url, "B1", range(100, 110))
    until(lambda: set(range(100, 110)) <= set(worker.ids("ended")))
    assert not set(worker.ids("ended")) & set(range(5, 10))


def test_a_queue_added_while_redis_was_away_is_consumed_when_it_is_back(crew, send, broker, until):
    worker = crew(broker.url, slots=5, queues=["short.B1"], seconds_each=0.01)
    broker.kill()
    worker.want(["short.B1", "short.B2"])
    until(lambda: "Connection to broker lost" in worker.output() or "Trying again" in worker.output())
    broker.start(empty=True)
    for name in ("B1", "B2"):
        send(broker.url, name, range(5))
    until(lambda: len(worker.ids("ended")) == 10)


@pytest.mark.slow
def test_a_worker_started_before_its_redis_waits_for_it(crew, send, broker, until):
    broker.kill()
    worker = crew(broker.url, slots=5, queues=["short.B1"], seconds_each=0.01, wait=False)
    until(lambda: worker.told("startup"))
    broker.start()
    send(broker.url, "B1", range(5))
    until(lambda: len(worker.ids("ended")) == 5)


def test_a_stop_while_redis_is_away_still_drains(crew, send, broker, until):
    send(broker.url, "B1", range(5))
    worker = crew(broker.url, slots=5, queues=["short.B1"], seconds_each=2)
    until(lambda: len(worker.ids("began")) == 5)
    broker.kill()
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0
    assert len(worker.ids("ended")) == 5
    assert worker.told()[-1].what == "shutdown"


class Proxy(threading.Thread):
    """Passes connections on to a broker. After `deafen`, those that exist stay open and pass nothing more."""

    def __init__(self, port):
        super().__init__(daemon=True)
        self._port, self._pairs, self._deaf, self._over = port, {}, set(), threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.start()

    def deafen(self):
        self._deaf |= set(self._pairs)

    def close(self):
        self._over.set()
        self.join(5)
        for sock in (self._server, *self._pairs):
            sock.close()

    def run(self):
        while not self._over.is_set():
            heard, _, _ = select.select([self._server, *(set(self._pairs) - self._deaf)], [], [], 0.05)
            for sock in heard:
                with suppress(OSError):
                    self._accept() if sock is self._server else self._pass(sock)

    def _accept(self):
        client, _ = self._server.accept()
        broker = socket.create_connection(("127.0.0.1", self._port))
        self._pairs |= {client: broker, broker: client}

    def _pass(self, sock):
        data = sock.recv(65_536)
        if data:
            self._pairs[sock].sendall(data)
        else:
            other = self._pairs.pop(sock)
            self._pairs.pop(other, None)
            sock.close()
            other.close()


@pytest.fixture
def half_open(broker):
    """The URL of a broker behind a proxy, and the proxy."""
    port = int(broker.url.rsplit(":", 1)[1].split("/")[0])
    proxy = Proxy(port)
    yield broker.url.replace(f":{port}/", f":{proxy.port}/"), proxy
    proxy.close()


@pytest.mark.slow
def test_a_deaf_worker_lets_its_answers_finish_and_ends_with_an_error(crew, send, broker, half_open, until):
    url, proxy = half_open
    send(broker.url, "B1", range(5))
    worker = crew(url, slots=10, queues=["short.B1"], seconds_each=4, deaf_after_s=2)
    until(lambda: len(worker.ids("began")) == 5)
    proxy.deafen()
    send(broker.url, "B1", range(5, 50))
    assert worker.exit_code(60) == 1
    assert sorted(worker.ids("ended")) == sorted(worker.ids("began"))
    assert len(worker.ids("ended")) <= 6   # one hint may have been under way
    assert "deaf" in worker.output()


@pytest.mark.slow
def test_an_idle_worker_and_a_full_worker_are_not_deaf(crew, send, redis_url, until):
    send(redis_url, "hold", range(20))
    full = crew(redis_url, slots=5, queues=["short.hold"], deaf_after_s=1)
    idle = crew(redis_url, slots=5, queues=["short.B1"], deaf_after_s=1)
    until(lambda: len(full.ids("began")) == 5)
    with pytest.raises(AssertionError, match="never came true"):
        until(lambda: full.process.poll() is not None or idle.process.poll() is not None, patience_s=3)


def test_no_password_is_told_by_log_remote_control_or_redis(crew, send, broker, until):
    send(broker.url, "raise", range(2))
    worker = crew(broker.url, slots=5, queues=["short.raise"])
    until(lambda: len(worker.ids("ended")) == 2)
    app = make_app(Settings(redis_url=broker.url))
    inspect = app.control.inspect(timeout=0.7)
    told = json.dumps([inspect.conf(with_defaults=True), inspect.stats(), inspect.registered(), inspect.active_queues()])
    app.close()
    assert "short.raise" in told
    broker.kill()
    until(lambda: "Cannot connect to" in worker.output() or "Connection to broker lost" in worker.output())
    broker.start()
    with Redis.from_url(broker.url) as redis:
        stored = b"".join(redis.dump(key) or b"" for key in redis.scan_iter())
    for place in (told, worker.output(), stored.decode(errors="replace")):
        assert "broker-password" not in place


@pytest.mark.slow
@pytest.mark.full
def test_two_thousand_are_held_and_five_kills_of_redis_are_outlived(crew, send, broker, until):
    send(broker.url, "B1", range(4_000))
    worker = crew(broker.url, slots=2_000, queues=["short.B1"], seconds_each=10)
    until(lambda: worker.in_flight()[-1:] == [2_000])
    for n in range(5):
        broker.kill()
        broker.start(empty=n % 2 == 0)
        send(broker.url, "B1", range(10_000 * (n + 1), 10_000 * (n + 1) + 50))
    until(lambda: len(worker.ids("ended")) >= 2_000, 60)
    send(broker.url, "B1", range(90_000, 90_100))
    until(lambda: set(range(90_000, 90_100)) <= set(worker.ids("ended")), 90)
    assert max(worker.in_flight()) == 2_000
    assert worker.process.poll() is None


@pytest.mark.slow
@pytest.mark.full
def test_a_minute_without_redis_is_outlived(crew, send, broker, until):
    worker = crew(broker.url, slots=10, queues=["short.B1"], seconds_each=0.01, deaf_after_s=60)
    broker.kill()
    with pytest.raises(AssertionError, match="never came true"):
        until(lambda: worker.process.poll() is not None, patience_s=60)
    broker.start(empty=True)
    send(broker.url, "B1", range(10))
    until(lambda: len(worker.ids("ended")) == 10, 60)
