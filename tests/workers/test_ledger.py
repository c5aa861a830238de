"""The ledger of a worker: batches, what cancelled waiters leave, and a database that goes away."""

import asyncio
import json
import signal
from dataclasses import replace

import pytest

from models import blob
from models.base import connect_async, perform
from models.states import Event, Lane, State
from models.store import claims, settlements, sweeps
from tests.hand import done, ended, stored
from tests.proxy import Proxy
from workers import ledger as room
from workers.ledger import MOST, NO_ROOM, Batcher, Ledger
from workers.spool import Spool, orphaned

PATIENCE_S = 20.0


@pytest.fixture
async def proxy(database):
    async with Proxy(database) as proxy:
        yield proxy


@pytest.fixture
async def ledgers(store, proxy, tmp_path):
    """Makes ledgers of workers of their own that reach the database through the proxy."""
    made = []

    async def make():
        worker = await store.do(sweeps.join, name="w", host="h", pid=1, lane=0, concurrency=8)
        engine = connect_async(proxy.url, size=2)
        spool = Spool(tmp_path, str(worker))
        ledger = Ledger(engine, worker, Lane.SHORT, spool)
        ledger.start()
        made.append((ledger, engine, spool))
        return ledger

    yield make
    for ledger, engine, spool in made:
        await ledger.stop(0.1)
        await engine.dispose()
        spool.close()


@pytest.fixture
async def ledger(ledgers):
    return await ledgers()


async def until(truth):
    async with asyncio.timeout(PATIENCE_S):
        while not (value := truth()):  # noqa: ASYNC110  (what it waits for is in other processes)
            await asyncio.sleep(0.02)
    return value


async def reaches(store, sample_id, state):
    async with asyncio.timeout(PATIENCE_S):
        while (await store.sample(sample_id)).state != state:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


def counted(monkeypatch, module, name):
    """Sizes of the batches that one of the store's verbs is given."""
    sizes, verb = [], getattr(module, name)

    def spy(connection, batch, *args, **kwargs):
        sizes.append(len(batch))
        return verb(connection, batch, *args, **kwargs)

    monkeypatch.setattr(module, name, spy)
    return sizes


# -- batches -----------------------------------------------------------------------------------------------------------

async def test_many_claims_and_settlements_are_a_few_statements(store, ledger, monkeypatch):
    asked, settled = counted(monkeypatch, claims, "claim_or_refuse"), counted(monkeypatch, settlements, "settle")
    ids = await store.samples(await store.dataset(), 250)
    taken = await asyncio.gather(*(ledger.claim(i, "home") for i in ids))
    assert all(await asyncio.gather(*(ledger.settle(done(c)) for c in taken)))
    assert max(asked + settled) <= MOST
    assert len(asked) <= 4
    assert len(settled) <= 4
    assert ledger.held == {}
    await store.check_counters()


async def test_each_waiter_is_told_of_its_own_sample(store, ledger):
    d = await store.dataset()
    good, bad, late = await store.samples(d, 3)
    [other] = await store.samples(d, lane=Lane.LONG, prefix="l")
    await store.claimed(bad, worker=99)
    got = await asyncio.gather(*(ledger.claim(i, "home") for i in (good, bad, other, late, 12345)))
    assert [c and c.id for c in got] == [good, None, None, late, None]
    assert ledger.held == {good: 1, late: 1}
    assert await ledger.claim(good, "home") is None


async def test_a_claim_without_room_is_told_from_one_that_is_taken(store, ledger):
    a, b = await store.samples(await store.dataset(token_budget=150), 2)
    assert (await ledger.claim(a, "home")).id == a
    assert await ledger.claim(b, "home") is NO_ROOM
    assert ledger.held == {a: 1}


async def test_two_hints_for_one_sample_are_one_claim(store, ledger):
    [s] = await store.samples(await store.dataset())
    got = await asyncio.gather(ledger.claim(s, "home"), ledger.claim(s, "home"))
    assert sorted(c is None for c in got) == [False, True]
    assert ledger.held == {s: 1}


async def test_a_late_settlement_is_told_that_its_fence_refused_it(store, ledger):
    [s] = await store.samples(await store.dataset())
    claim = await ledger.claim(s, "home")
    await store.settle(ended(claim, Event.RESCUE, "worker_lost"))
    await store.claimed(s, worker=99)
    assert await ledger.settle(done(claim)) is False
    assert (ledger.fenced, ledger.held) == (1, {})


async def test_a_batch_of_two_hundred_with_one_bad_row_loses_that_row_alone(store, ledger, tmp_path):
    ids = await store.samples(await store.dataset(), 200)
    taken = await asyncio.gather(*(ledger.claim(i, "home") for i in ids))
    batch = [done(c) for c in taken]
    batch[137] = replace(batch[137], generation_id="half \ud83d", stored=stored(raw=blob.pack_json("kept")))
    batch[11] = replace(batch[11], provider="NUL \0", completion_tokens=2**40, cost_nusd=123)
    await asyncio.gather(*(ledger.settle(s) for s in batch))
    for n in (11, 137):
        sample = await store.sample(ids[n])
        assert (sample.state, sample.reason) == (State.FAILED, "refused_by_store")
        [kept] = tmp_path.glob(f"refused-{ids[n]}-1.json")
        assert json.loads(kept.read_text())["id"] == ids[n]
        assert kept.stat().st_mode & 0o777 == 0o600
    assert (await store.one("select done, failed, running, spent_nusd from dataset")) == (198, 2, 0, 198 * 10_000 + 10_000 + 123)
    assert ledger.held == {}
    await store.check_counters()


async def test_a_flush_that_fails_for_no_known_reason_ends_the_process_instead_of_hanging_it(store, ledger, monkeypatch):
    ends = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ends.set)

    def broken(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(claims, "claim_or_refuse", broken)
    waiter = asyncio.create_task(ledger.claim(1, "home"))
    try:
        async with asyncio.timeout(PATIENCE_S):
            await ends.wait()
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
        waiter.cancel()


# -- cancelled waiters -------------------------------------------------------------------------------------------------

async def test_a_claim_whose_waiter_was_cancelled_is_given_back(store, ledger):
    ids = await store.samples(await store.dataset(), 40)
    waiters = [asyncio.create_task(ledger.claim(i, "home")) for i in ids]
    await until(lambda: ledger._asked)                      # the statement is under way
    for waiter in waiters[::2]:
        waiter.cancel()
    got = await asyncio.gather(*waiters, return_exceptions=True)
    kept = {c.id for c in got if not isinstance(c, BaseException)}
    assert kept == set(ids[1::2]) == set(ledger.held)
    assert await ledger.give_back_strays() == 20
    assert await ledger.give_back_strays() == 0
    states = await store.all("select id from sample where state = 1")
    assert {r.id for r in states} == kept
    await store.check_counters()


async def test_a_waiter_cancelled_after_its_answer_came_keeps_nothing():
    told = []

    async def flush(items):
        return items

    batcher = Batcher(flush, told.append)
    waiter = asyncio.create_task(batcher.put(7))
    await asyncio.sleep(0)
    [(_, future)] = batcher._waiting
    future.set_result(7)
    waiter.cancel()                                         # before it runs again
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert told == [7]


async def test_a_claim_cancelled_before_its_flush_is_not_asked_for(store, ledger, monkeypatch):
    asked = counted(monkeypatch, claims, "claim_or_refuse")
    a, b = await store.samples(await store.dataset(), 2)
    first, second = (asyncio.create_task(ledger.claim(i, "home")) for i in (a, b))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).id == b
    assert asked == [1]
    assert (await store.sample(a)).state == State.QUEUED


async def test_a_settlement_is_written_though_its_waiter_was_cancelled(store, ledger):
    [s] = await store.samples(await store.dataset())
    waiter = asyncio.create_task(ledger.settle(done(await ledger.claim(s, "home"))))
    await asyncio.sleep(0)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert await ledger.give_back_strays() == 0             # still in hand
    await until(lambda: not ledger.held)
    assert (await store.sample(s)).state == State.DONE


async def test_what_is_in_hand_is_never_given_back(store, ledger):
    """Claims are told here a moment after they are committed; a look at the database in between must not undo them."""
    ids = await store.samples(await store.dataset(), 600)
    over = False

    async def look():
        given = 0
        while not over:
            given += await ledger.give_back_strays()
        return given

    looking = asyncio.create_task(look())
    for start in range(0, 600, 60):
        taken = await asyncio.gather(*(ledger.claim(i, "home") for i in ids[start:start + 60]))
        assert all(await asyncio.gather(*(ledger.settle(done(c)) for c in taken)))
    over = True
    assert await looking == 0
    assert (await store.one("select done from dataset")).done == 600


async def test_a_claim_told_late_is_no_stray(store, ledger, monkeypatch):
    """The same race, forced: the claim is committed, its answer is still on the wire."""
    [s] = await store.samples(await store.dataset())
    committed, go_on = asyncio.Event(), asyncio.Event()

    async def late(engine, verb, *args, **kwargs):
        result = await perform(engine, verb, *args, **kwargs)
        if verb is claims.claim_or_refuse:
            committed.set()
            await go_on.wait()
        return result

    monkeypatch.setattr(room, "perform", late)
    waiter = asyncio.create_task(ledger.claim(s, "home"))
    await committed.wait()
    assert await ledger.give_back_strays() == 0
    go_on.set()
    assert (await waiter).fence == 1
    assert (await store.sample(s)).state == State.RUNNING


# -- the database goes away --------------------------------------------------------------------------------------------

async def test_while_the_database_is_away_answers_are_kept_and_no_new_call_begins(store, ledger, proxy, tmp_path):
    ids = await store.samples(await store.dataset(), 260)
    taken = [await c for c in [ledger.claim(i, "home") for i in ids[:3]]]
    taken += await asyncio.gather(*(ledger.claim(i, "home") for i in ids[3:250]))
    proxy.cut()
    asking = [asyncio.create_task(ledger.claim(i, "home")) for i in ids[250:]]
    settling = [asyncio.create_task(ledger.settle(done(c))) for c in taken[:200]]
    await until(lambda: ledger._spool.waiting == 200)       # two batches, of which one was under way
    assert ledger.away
    settling += [asyncio.create_task(ledger.settle(done(c))) for c in taken[200:]]
    await until(lambda: ledger._spool.waiting == 250)       # at once, not when its turn comes
    assert not any(t.done() for t in asking + settling)
    assert (await store.one("select count(*) as n from attempt")).n == 250
    assert list(orphaned(tmp_path)) == []                   # its worker lives
    proxy.mend()
    assert all(await asyncio.gather(*settling))
    assert all(c.id for c in await asyncio.gather(*asking))
    assert not ledger.away
    assert ledger._spool.path.stat().st_size == 0
    assert (await store.one("select done, running from dataset")) == (250, 10)
    await store.check_counters()


async def test_a_settlement_whose_answer_was_lost_is_written_once(store, ledger, proxy):
    [s] = await store.samples(await store.dataset())
    claim = await ledger.claim(s, "home")
    proxy.swallow(b"insert into completion")
    settling = asyncio.create_task(ledger.settle(done(claim)))
    await reaches(store, s, State.DONE)
    proxy.cut()                                             # committed, and nobody was told
    await until(lambda: ledger.away)
    proxy.mend()
    assert await settling is False                          # the second time there was nothing left to own
    assert (await store.one("select done, spent_nusd from dataset")) == (1, 10_000)
    await store.check_counters()


async def test_a_claim_whose_answer_was_lost_is_given_back(store, ledger, proxy):
    [s] = await store.samples(await store.dataset())
    proxy.swallow(b"insert into attempt")
    asking = asyncio.create_task(ledger.claim(s, "home"))
    await reaches(store, s, State.RUNNING)
    proxy.cut()
    await until(lambda: ledger.away)
    proxy.mend()
    assert await asking is None
    assert await ledger.give_back_strays() == 1
    assert (await store.sample(s)).state == State.QUEUED
    await store.check_counters()


async def test_a_restart_of_postgresql_costs_no_answer(store, ledger, services):
    ids = await store.samples(await store.dataset(), 60)
    taken = await asyncio.gather(*(ledger.claim(i, "home") for i in ids))
    settling = [asyncio.create_task(ledger.settle(done(c))) for c in taken[:30]]
    services._processes["postgres"].end(signal.SIGINT, 60)
    settling += [asyncio.create_task(ledger.settle(done(c))) for c in taken[30:]]
    await until(lambda: ledger.away)
    assert services.restart_dead() == ["postgres"]
    await asyncio.gather(*settling)
    await store.engine.dispose()                            # its connections are those of before
    assert (await store.one("select done from dataset")).done == 60
    await store.check_counters()


async def test_what_a_killed_worker_had_in_its_spool_is_settled_by_the_next(store, ledgers, proxy, tmp_path):
    first = await ledgers()
    ids = await store.samples(await store.dataset(), 150)
    taken = await asyncio.gather(*(first.claim(i, "home") for i in ids))
    proxy.cut()
    settling = [asyncio.create_task(first.settle(done(c))) for c in taken]
    await until(lambda: first._spool.waiting == 150 and not first._spool._writing.locked())    # and all of it is on the disk
    for task in [*first._tasks, *settling]:
        task.cancel()                                       # as by kill -9: nothing is tidied up
    path = first._spool.path
    kept = path.read_bytes()
    (tmp_path / "0.spool").write_bytes(kept)                # a file that nobody holds
    proxy.mend()
    second = await ledgers()
    assert await second.replay(tmp_path) == 150
    assert not (tmp_path / "0.spool").exists()
    assert (await store.one("select done from dataset")).done == 150
    (tmp_path / "0.spool").write_bytes(kept)
    await second.replay(tmp_path)                           # once more changes nothing
    assert (await store.one("select done, spent_nusd from dataset")) == (150, 150 * 10_000)
    await store.check_counters()


async def test_a_replay_does_not_let_go_of_what_this_worker_claimed_since(store, ledgers, tmp_path):
    first, second = await ledgers(), await ledgers()
    [s] = await store.samples(await store.dataset())
    claim = await first.claim(s, "home")
    spool = Spool(tmp_path / "dead", "1")
    await spool.keep([done(claim)])
    spool.close()
    await store.settle(ended(claim, Event.RESCUE, "worker_lost"))
    await second.claim(s, "home")
    await second.replay(tmp_path / "dead")
    assert second.held == {s: 2}
    assert (await store.sample(s)).state == State.RUNNING


async def test_stopping_writes_what_waits(store, ledger):
    taken = await asyncio.gather(*(ledger.claim(i, "home") for i in await store.samples(await store.dataset(), 30)))
    settling = [asyncio.create_task(ledger.settle(done(c))) for c in taken]
    await asyncio.sleep(0)
    await ledger.stop()
    assert all(await asyncio.gather(*settling))
    assert (await store.one("select done from dataset")).done == 30


async def test_stopping_without_a_database_leaves_every_answer_in_the_spool(store, ledger, proxy, tmp_path):
    taken = await asyncio.gather(*(ledger.claim(i, "home") for i in await store.samples(await store.dataset(), 130)))
    proxy.cut()
    settling = [asyncio.create_task(ledger.settle(done(c))) for c in taken]
    await asyncio.sleep(0)
    await ledger.stop(0.3)
    for task in settling:
        task.cancel()
    (tmp_path / "0.spool").write_bytes(ledger._spool.path.read_bytes())     # a file that nobody holds
    [(_, kept)] = orphaned(tmp_path)
    assert sorted(s.id for s in kept) == sorted(c.id for c in taken)
