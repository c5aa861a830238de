"""The pool under the real Celery worker: how many run at once, who gets them, and how it ends."""

import signal
import time
from collections import Counter

import pytest


def until(truth, patience_s=30.0):
    end = time.monotonic() + patience_s
    while not (value := truth()):
        assert time.monotonic() < end, f"never came true: {truth}"
        time.sleep(0.02)
    return value


def test_a_full_queue_keeps_exactly_as_many_in_flight_as_there_are_slots(crew, send, redis_url):
    send(redis_url, "B1", range(400))
    worker = crew(redis_url, slots=50, queues=["short.B1"], seconds_each=0.3)
    until(lambda: len(worker.ids("ended")) == 400)
    assert max(worker.in_flight()) == 50
    assert sorted(worker.ids("ended")) == list(range(400))
    assert not worker.told("confused")
