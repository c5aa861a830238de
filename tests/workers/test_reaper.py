"""The reaper: one leads, the dead are buried with their samples saved, queues are kept, budgets closed."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from models.hint import Hints, queue_of
from models.settings import Settings
from models.states import Closed, Event, Lane, State
from models.store import datasets, sweeps
from tests.hand import SHORT_MAX, done, ended
from tests.proxy import Proxy
from workers.hands import left_by_the_dead
from workers.reaper import Reaper, reap

PREFIX = "reaper-test:"
REPO = Path(__file__).parents[2]
PATIENCE_S = 30.0


@pytest.fixture
def settings(database, redis_url, tmp_path):
    return Settings(database_url=database, redis_url=redis_url, key_prefix=PREFIX, home=tmp_path, dead_after_s=20.0,
                    reap_every_s=0.1, hint_window=20)


@pytest.fixture
async def hints(redis_url):
    hints = Hints(redis_url, PREFIX)
    yield hints
    await hints.close()


@pytest.fixture
def reaper(settings, store, hints):
    return Reaper(settings, store.engine, hints)


@pytest.fixture
def client(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        yield client


def waiting(client, dataset="B1", lane=Lane.SHORT):
    return [json.loads(json.loads(m)["body"])[0][0] for m in reversed(client.lrange(PREFIX + queue_of(lane, dataset), 0, -1))]


async def join(store):
    return await store.do(sweeps.join, name="w", host="h", pid=1, lane=0, concurrency=8)


async def silent(store, *workers, seconds=60):
    await store.all("update worker set heartbeat_at = clock_timestamp() - make_interval(secs => :s) where id = any(:ids)",
                    s=seconds, ids=list(workers))


async def until(truth):
    async with asyncio.timeout(PATIENCE_S):
        while not (value := await truth()):  # noqa: ASYNC110  (what it waits for is in the services)
            await asyncio.sleep(0.05)
    return value


# -- rounds --------------------------------------------------------------------------------------------------------------

async def test_a_round_buries_rescues_and_hints_again(store, reaper, client):
    worker = await join(store)
    ids = await store.samples(await store.dataset(), 4)
    await store.claim(ids, worker)
    await silent(store, worker)
    done_ = await reaper.reap_once()
    assert (done_.dead, done_.rescued, done_.hinted) == (1, 4, 4)
    assert waiting(client) == ids
    again = await reaper.reap_once()
    assert (again.dead, again.rescued, again.hinted) == (0, 0, 0)
    assert reaper.totals["rescued"] == 4
    await store.check_counters()


KILLED = """
import os, signal, sys
from pathlib import Path
from workers.hands import Hands
with Hands(Path(sys.argv[1]), int(sys.argv[2])).hold(int(sys.argv[3])):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def die_with_in_hand(folder, worker, sample):
    subprocess.run([sys.executable, "-c", KILLED, folder, str(worker), str(sample)], cwd=REPO, timeout=60, check=False)


async def test_a_poison_prompt_ends_after_three_deaths_and_its_neighbours_go_on(store, reaper, tmp_path):
    """As it happens on one machine: the hands of the dead tell who was being worked on."""
    poison, *neighbours = await store.samples(await store.dataset(), 5)
    for _ in range(3):
        worker = await join(store)
        assert len(await store.claim([poison, *neighbours], worker)) == 5
        die_with_in_hand(tmp_path / "hands", worker, poison)
        for path, dead, held in left_by_the_dead(tmp_path / "hands"):
            assert (dead, held) == (worker, [poison])
            await store.do(sweeps.blame, dead, held)
            await store.do(sweeps.bury, 1e9, [dead])
            path.unlink()
        assert (await reaper.reap_once()).rescued == 5
    sample = await store.sample(poison)
    assert (sample.state, sample.reason) == (State.FAILED, "poison")
    assert [(await store.sample(n)).crashes for n in neighbours] == [0] * 4
    assert [(await store.sample(n)).state for n in neighbours] == [State.QUEUED] * 4


async def test_a_dataset_at_its_budget_is_closed_and_its_queues_emptied(store, reaper, client):
    d = await store.dataset(token_budget=SHORT_MAX)
    a, b, c = await store.samples(d, 3)
    await reaper.reap_once()
    assert waiting(client) == [a, b, c]
    await store.settle(done(await store.claimed(a), SHORT_MAX))
    assert (await reaper.reap_once()).closed == 1
    assert waiting(client) == []
    assert (await store.one("select state, closed_reason from dataset")) == (1, "budget")
    assert (await reaper.reap_once()).closed == 0
    assert [(await store.sample(s)).state for s in (b, c)] == [State.QUEUED] * 2


async def test_a_dataset_opened_again_is_hinted_again(store, reaper, client):
    d = await store.dataset()
    ids = await store.samples(d, 3)
    await store.do(datasets.close, d, Closed.OPERATOR)
    await reaper.reap_once()
    assert waiting(client) == []
    await store.do(datasets.open_again, d)
    await reaper.reap_once()
    assert waiting(client) == ids
    await store.do(datasets.close, d, Closed.OPERATOR)
    await reaper.reap_once()
    assert waiting(client) == []                            # purged a second time, too


async def test_a_snoozed_sample_is_hinted_when_its_time_has_come(store, reaper, client):
    [s] = await store.samples(await store.dataset())
    await store.settle(ended(await store.claimed(s), Event.SNOOZE, wait_s=60))
    assert (await reaper.reap_once()).hinted == 0
    await store.all("update sample set not_before = clock_timestamp()")
    assert (await reaper.reap_once()).hinted == 1


async def test_queues_come_back_after_redis_lost_everything(store, reaper, client):
    ids = await store.samples(await store.dataset(), 30)
    await reaper.reap_once()
    assert waiting(client) == ids[:20]
    await store.claim(ids[:5])
    client.flushall()
    await store.all("update sample set hinted_at = hinted_at - interval '31 s'")
    await reaper.reap_once()
    assert sorted(waiting(client)) == ids[5:15] + ids[20:]  # never hinted ones first


async def test_a_broker_that_is_away_does_not_keep_the_dead_unburied(store, settings):
    away = Hints("redis://127.0.0.1:1/0", PREFIX, deadline_s=1.0)
    worker = await join(store)
    await store.claim(await store.samples(await store.dataset(), 2), worker)
    await silent(store, worker)
    round_ = await Reaper(settings, store.engine, away).reap_once()
    assert (round_.dead, round_.rescued, round_.hinted) == (1, 2, 0)
    await away.close()


async def test_the_forecast_is_refreshed(store, reaper):
    await store.dataset(token_budget=1_000, budget_mode="forecast")
    await reaper.reap_once()
    assert (await store.one("select forecast_at from dataset")).forecast_at is not None


# -- silence that is not death ---------------------------------------------------------------------------------------------

async def test_after_a_gap_nobody_is_buried_until_all_had_time_to_beat(store, reaper, monkeypatch):
    """The database was away, or the machine slept: everyone was silent, and nobody is dead."""
    now = [1_000.0]
    monkeypatch.setattr("workers.reaper.monotonic", lambda: now[0])
    monkeypatch.setattr("workers.reaper.time", lambda: now[0])
    alive, dead = await join(store), await join(store)
    reaper._round_at = (now[0], now[0])
    await reaper.reap_once()
    now[0] += 30.0
    await silent(store, alive, dead, seconds=32)
    assert (await reaper.reap_once()).dead == 0
    await store.do(sweeps.beat, alive, 0, {})
    for _ in range(4):
        now[0] += 4.9
        assert (await reaper.reap_once()).dead == 0
    now[0] += 4.9
    assert (await reaper.reap_once()).dead == 1
    assert await store.do(sweeps.beat, alive, 0, {})


async def test_a_machine_that_slept_is_noticed_by_its_clock(store, reaper, monkeypatch):
    worker = await join(store)
    await reaper.reap_once()
    await silent(store, worker, seconds=3_600)
    monkeypatch.setattr("workers.reaper.time", lambda: reaper._round_at[1] + 3_600)
    assert (await reaper.reap_once()).dead == 0


# -- who leads -------------------------------------------------------------------------------------------------------------

class Reign:
    """A reaper that runs as a process would, through a proxy that can be cut."""

    def __init__(self, settings, url):
        self.stop = asyncio.Event()
        settings = settings.model_copy(update={"database_url": type(settings.database_url)(url)})
        self.task = asyncio.create_task(reap(settings, self.stop))

    async def end(self):
        self.stop.set()
        await asyncio.wait_for(self.task, PATIENCE_S)


async def leader(store):
    """The session that holds the lock, None when nobody does."""
    rows = await store.all("select pid from pg_locks where locktype = 'advisory' and objid = :key and granted "
                           "and database = (select oid from pg_database where datname = current_database())",
                           key=sweeps.REAPER_LOCK)
    return rows[0].pid if rows else None


def nobody_leads(store):
    async def truth():
        return await leader(store) is None   # the server ends a closed session a moment later
    return truth


async def test_two_reapers_one_leads_and_the_other_takes_over(store, settings, database):
    first = Reign(settings, database)
    pid = await until(lambda: leader(store))
    second = Reign(settings, database)
    await asyncio.sleep(0.5)
    assert await leader(store) == pid
    await first.end()

    async def another():
        return (await leader(store) or pid) != pid
    await until(another)
    await second.end()
    await until(nobody_leads(store))


async def test_a_leader_that_stops_leaves_no_lock_behind_while_its_process_lives(store, settings, database):
    reign = Reign(settings, database)
    await until(lambda: leader(store))
    await store.all("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() "
                    "and pid <> pg_backend_pid()")
    pid = await until(lambda: leader(store))                # the same process leads again, in another session
    assert pid
    await reign.end()


async def test_a_frozen_leader_that_lost_its_session_does_not_reap_when_it_wakes(store, settings, database):
    async with Proxy(database) as proxy:
        frozen = Reign(settings, proxy.url)
        pid = await until(lambda: leader(store))
        proxy.cut()                                         # as if frozen: it hears and says nothing

        async def gone():
            return await leader(store) is None
        await until(gone)
        second = Reign(settings, database)
        new = await until(lambda: leader(store))
        assert new != pid
        proxy.mend()
        await asyncio.sleep(1.0)
        assert await leader(store) == new
        assert not frozen.task.done()                       # it waits for its turn
        await second.end()

        async def third():
            return await leader(store) not in (None, new)
        await until(third)
        await frozen.end()


async def test_a_reaper_outlives_a_database_that_is_away_for_long(store, settings, database):
    async with Proxy(database) as proxy:
        reign = Reign(settings, proxy.url)
        await until(lambda: leader(store))
        proxy.cut()
        await asyncio.sleep(3.0)                            # longer than it takes to try again
        assert not reign.task.done()
        proxy.mend()
        ids = await store.samples(await store.dataset(), 1)
        assert await until(lambda: store.all("select from sample where hinted_at is not null"))
        assert ids
        await reign.end()


FROZEN = """
import asyncio, sys
from models.settings import Settings
from workers import reaper
from workers.reaper import reap
url, redis_url, home, longest = sys.argv[1:]
reaper.LONGEST_ROUND_S = float(longest)
settings = Settings(database_url=url, redis_url=redis_url, key_prefix="reaper-test:", home=home, reap_every_s=0.1)
asyncio.run(reap(settings, asyncio.Event()))
"""


def another_process(*arguments, longest_round_s=20.0):
    return subprocess.Popen([sys.executable, "-c", FROZEN, *arguments, str(longest_round_s)], cwd=REPO, stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)


async def test_a_stopped_process_leads_on_when_it_goes_on_and_loses_nothing(store, settings, database, tmp_path):
    """For a moment SIGSTOP keeps its session and so its lock; admission needs no reaper."""
    process = another_process(database, settings.redis_url.get_secret_value(), tmp_path)
    try:
        pid = await until(lambda: leader(store))
        os.kill(process.pid, signal.SIGSTOP)
        second = Reign(settings, database)
        [s] = await store.samples(await store.dataset(token_budget=SHORT_MAX))
        await asyncio.sleep(1.0)
        assert await leader(store) == pid
        await store.settle(done(await store.claimed(s), SHORT_MAX))
        os.kill(process.pid, signal.SIGCONT)

        async def closed():
            return (await store.one("select state from dataset")).state == 1
        await until(closed)
        await second.end()
    finally:
        process.kill()
        process.wait(10)


async def test_a_process_stopped_for_long_loses_the_lead(store, settings, database, tmp_path):
    process = another_process(database, settings.redis_url.get_secret_value(), tmp_path, longest_round_s=0.5)
    try:
        pid = await until(lambda: leader(store))
        os.kill(process.pid, signal.SIGSTOP)
        second = Reign(settings, database)

        async def another():
            return await leader(store) not in (None, pid)
        await until(another)
        os.kill(process.pid, signal.SIGCONT)
        await second.end()
        assert await until(lambda: leader(store))           # it woke up, and leads again when its turn has come
        assert process.poll() is None
    finally:
        process.kill()
        process.wait(10)
