"""The heartbeat on a real database: it goes on while the loop is busy, ends with a loop that hangs, and tells of a death."""

import os
import time

import pytest
from sqlalchemy import text

from models.base import connect, transaction
from models.store import sweeps
from workers import heartbeat
from workers.heartbeat import Heartbeat


@pytest.fixture
def engine(database):
    engine = connect(database)
    yield engine
    engine.dispose()


@pytest.fixture
def worker(engine):
    with transaction(engine) as connection:
        return sweeps.join(connection, name="w", host="", pid=os.getpid(), lane=0, concurrency=1)


@pytest.fixture
def heart(database, worker):
    told = []
    heart = Heartbeat(database, 0.02, lambda c: sweeps.beat(c, worker, 7, {"lag_ms": 3}), lambda: told.append(worker))
    heart.told = told
    heart.start()
    yield heart
    heart.stop()


def beats(engine, worker):
    with transaction(engine) as connection:
        return connection.execute(text("select heartbeat_at, in_flight from worker where id = :id"), {"id": worker}).one()


def test_it_beats_without_an_event_loop(engine, worker, heart, until):
    first = beats(engine, worker).heartbeat_at
    until(lambda: beats(engine, worker).heartbeat_at > first)
    assert beats(engine, worker).in_flight == 7
    assert not heart.told


def test_a_loop_that_hangs_is_not_vouched_for(engine, worker, heart, until, monkeypatch):
    until(lambda: beats(engine, worker).in_flight == 7)
    monkeypatch.setattr(heartbeat, "HANGS_AFTER_S", 0.0)
    until(lambda: _still(engine, worker))
    monkeypatch.setattr(heartbeat, "HANGS_AFTER_S", 60.0)
    heart.lives()
    last = beats(engine, worker).heartbeat_at
    until(lambda: beats(engine, worker).heartbeat_at > last)


def _still(engine, worker):
    before = beats(engine, worker).heartbeat_at
    time.sleep(0.3)
    return beats(engine, worker).heartbeat_at == before


def test_who_was_declared_dead_is_told(engine, worker, heart, until):
    with transaction(engine) as connection:
        sweeps.bury(connection, 1e9, [worker])
    until(lambda: heart.told)
