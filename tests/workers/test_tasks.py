"""A worker's life on real services: how it beats while it starts, and how it goes on after it was declared dead."""

import asyncio

import pytest

from models.settings import Settings
from models.states import Lane
from models.store import sweeps
from workers.tasks import Worker

PATIENCE_S = 30.0


@pytest.fixture
def worker(database, redis_url, tmp_path):
    settings = Settings(database_url=database, redis_url=redis_url, home=tmp_path, heartbeat_s=0.05)
    return Worker(settings, Lane.SHORT, 4, "w")


async def until(truth):
    async with asyncio.timeout(PATIENCE_S):
        while not await truth():  # noqa: ASYNC110  (what it waits for is in the database)
            await asyncio.sleep(0.02)


async def workers(store):
    """id -> (whether it has beaten since it joined, whether it counts as dead)"""
    rows = await store.all("select id, heartbeat_at > started_at as beats, died_at is not null as dead from worker")
    return {row.id: (row.beats, row.dead) for row in rows}


async def test_a_worker_that_was_declared_dead_goes_on_once_under_one_new_name(store, worker, tmp_path):
    await worker.startup()
    old = worker.id
    await store.do(sweeps.bury, 1e9, [old])

    async def renamed():
        return worker.id != old
    await until(renamed)
    new = worker.id
    worker._rejoin_once(old)                                # a beat under the old name that was told late

    async def beats():
        return (await workers(store))[new][0]
    await until(beats)
    assert {name: dead for name, (_, dead) in (await workers(store)).items()} == {old: True, new: False}
    assert [p.name for p in tmp_path.glob("hands/*/*.hands")] == [f"{new}.hands"]
    await worker.shutdown()


async def test_a_worker_beats_while_it_still_starts(store, worker, monkeypatch):
    async def slow():
        async def beats():
            return [True for beaten, _ in (await workers(store)).values() if beaten]
        await until(beats)
    monkeypatch.setattr(worker, "_bury_predecessors", slow)
    await worker.startup()
    await worker.shutdown()
