"""The pool under the real Celery worker: how many run at once, who gets them, and how it ends."""

import signal
import subprocess
import threading
from collections import Counter

import pytest
from redis import Redis

from models.settings import Settings
from workers.app import make_app


@pytest.fixture
def control(redis_url):
    """Celery's remote control, as Flower uses it."""
    app = make_app(Settings(redis_url=redis_url))
    yield app.control
    app.close()


def test_a_full_queue_keeps_exactly_as_many_in_flight_as_there_are_slots(crew, send, redis_url, until):
    send(redis_url, "B1", range(300))
    worker = crew(redis_url, slots=50, queues=["short.B1"], seconds_each=0.3)
    until(lambda: len(worker.ids("ended")) == 300)
    assert max(worker.in_flight()) == 50
    assert sorted(worker.ids("ended")) == list(range(300))
    assert not worker.told("confused")


def test_a_full_worker_hoards_nothing(crew, send, waiting, redis_url, until):
    send(redis_url, "hold", range(50))
    one, two = (crew(redis_url, slots=20, queues=["short.hold"]) for _ in range(2))
    until(lambda: len(one.ids("began")) == len(two.ids("began")) == 20)
    assert waiting(redis_url, "hold") == 10


def test_two_workers_share_a_queue_about_evenly(crew, send, redis_url, until):
    one, two = (crew(redis_url, slots=20, queues=["short.B1"], seconds_each=0.2) for _ in range(2))
    send(redis_url, "B1", range(400))
    until(lambda: len(one.ids("ended")) + len(two.ids("ended")) == 400)
    assert 130 <= len(one.ids("ended")) <= 270
    assert not set(one.ids("ended")) & set(two.ids("ended"))


def test_a_small_queue_is_not_starved_by_a_large_one(crew, send, redis_url, until):
    small = [f"S{n}" for n in range(5)]
    send(redis_url, "large", range(600))
    for name in small:
        send(redis_url, name, range(20))
    worker = crew(redis_url, slots=30, queues=["short.large", *(f"short.{name}" for name in small)])
    until(lambda: len(worker.ids("ended")) >= 300)
    served = Counter(t.dataset for t in worker.told("ended")[:300])
    assert all(served[name] == 20 for name in small)


def test_a_stop_takes_no_more_and_lets_answers_finish(crew, send, waiting, redis_url, until):
    send(redis_url, "B1", range(40))
    worker = crew(redis_url, slots=10, queues=["short.B1"], seconds_each=1.5)
    until(lambda: len(worker.ids("began")) == 10)
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0
    assert sorted(worker.ids("ended")) == sorted(worker.ids("began"))
    assert len(worker.ids("ended")) == 10
    assert worker.told()[-1].what == "shutdown"
    assert waiting(redis_url, "B1") == 30


def test_answers_longer_than_the_grace_are_cancelled_and_may_clean_up(crew, send, redis_url, until):
    send(redis_url, "hold", range(10))
    send(redis_url, "stubborn", range(10))
    worker = crew(redis_url, slots=20, queues=["short.hold", "short.stubborn"], grace_s=0.5)
    until(lambda: len(worker.ids("began")) == 20)
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0
    assert len(worker.ids("cancelled")) == 20
    assert worker.told()[-1].what == "shutdown"


@pytest.mark.parametrize("signals", [
    (signal.SIGTERM, signal.SIGTERM), (signal.SIGQUIT,),
    pytest.param((signal.SIGINT, signal.SIGINT), marks=pytest.mark.slow)])
def test_a_second_signal_or_sigquit_does_not_wait_for_the_grace(crew, send, redis_url, until, signals):
    send(redis_url, "hold", range(10))
    worker = crew(redis_url, slots=10, queues=["short.hold"], grace_s=600)
    until(lambda: len(worker.ids("began")) == 10)
    for n, number in enumerate(signals):
        worker.signal(number)
        if n + 1 < len(signals):  # the first one alone cancels nothing
            with pytest.raises(subprocess.TimeoutExpired):
                worker.exit_code(1.5)
    assert worker.exit_code() == 0
    assert len(worker.ids("cancelled")) == 10


def test_a_killed_worker_leaves_nothing_of_its_tasks_in_redis(crew, send, redis_url, until):
    send(redis_url, "hold", range(10))
    worker = crew(redis_url, slots=10, queues=["short.hold"])
    until(lambda: len(worker.ids("began")) == 10)
    worker.signal(signal.SIGKILL)
    worker.exit_code()
    with Redis.from_url(redis_url) as redis:
        assert all(b"_kombu.binding" in key for key in redis.scan_iter())


def test_a_sample_that_raises_disturbs_no_other(crew, send, redis_url, until):
    send(redis_url, "raise", range(20))
    send(redis_url, "B1", range(20))
    worker = crew(redis_url, slots=10, queues=["short.raise", "short.B1"])
    until(lambda: len(worker.ids("ended")) == 40)
    assert worker.process.poll() is None


def test_slots_can_be_grown_and_shrunk(crew, send, redis_url, until, control):
    send(redis_url, "B1", range(300))
    worker = crew(redis_url, slots=10, queues=["short.B1"], seconds_each=0.5)
    until(lambda: worker.in_flight()[-1:] == [10])
    control.pool_grow(20)
    until(lambda: max(worker.in_flight()) == 30)
    control.pool_shrink(25)
    until(lambda: worker.in_flight()[-1] <= 5)
    began = len(worker.ids("began"))
    until(lambda: len(worker.ids("began")) >= began + 10)
    assert max(worker.in_flight()[-10:]) <= 5
    assert max(worker.in_flight()) == 30


def test_one_task_can_be_terminated_among_others(crew, send, redis_url, until, control):
    send(redis_url, "hold", range(5))
    worker = crew(redis_url, slots=5, queues=["short.hold"])
    until(lambda: len(worker.ids("began")) == 5)
    (active,) = control.inspect(timeout=2).active().values()
    victim = next(task for task in active if task["args"][0] == 3)
    control.revoke(victim["id"], terminate=True)
    until(lambda: worker.ids("cancelled") == [3])
    assert len(worker.ids("began")) == 5


@pytest.fixture
def heard(redis_url):
    """Events as Flower hears them; a list that grows."""
    app, seen = make_app(Settings(redis_url=redis_url)), []
    connection = app.connection_for_read()
    receiver = app.events.Receiver(connection, handlers={"*": seen.append})
    listener = threading.Thread(target=receiver.capture, kwargs={"wakeup": False})
    listener.start()
    yield seen
    receiver.should_stop = True
    listener.join(10)
    connection.release()
    app.close()


def test_events_carry_true_runtimes(crew, send, redis_url, until, heard):
    worker = crew(redis_url, slots=5, queues=["short.B1", "short.raise"], seconds_each=0.7)
    until(lambda: heard)
    send(redis_url, "B1", [1, 2])
    send(redis_url, "raise", [3])
    until(lambda: len(worker.ids("ended")) == 3)
    until(lambda: Counter(e["type"] for e in heard) >= Counter({"task-succeeded": 2, "task-failed": 1}))
    runtimes = [e["runtime"] for e in heard if e["type"] == "task-succeeded"]
    assert len(runtimes) == 2
    assert all(0.7 <= runtime < 5 for runtime in runtimes)


def test_what_ends_in_the_drain_is_told_too(crew, send, redis_url, until, heard):
    worker = crew(redis_url, slots=5, queues=["short.B1"], seconds_each=1)
    until(lambda: heard)
    send(redis_url, "B1", range(5))
    until(lambda: len(worker.ids("began")) == 5)
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == 0
    until(lambda: sum(e["type"] == "task-succeeded" for e in heard) == 5)


def test_a_worker_whose_startup_fails_ends_with_an_error(crew, redis_url):
    worker = crew(redis_url, slots=1, queues=[], startup="fail")
    assert worker.exit_code() == 1
    assert "the database is away" in worker.output()
