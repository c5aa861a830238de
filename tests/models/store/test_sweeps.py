"""Who is alive, whose samples come back, who is blamed, who leads."""

import asyncio

from sqlalchemy import text

from models.states import Event, State
from models.store import sweeps
from models.store.settlements import MAX_CRASHES
from tests.hand import SHORT_MAX, done, ended


async def join(store, **changes):
    return await store.do(sweeps.join, **{"name": "w", "host": "h", "pid": 1, "lane": 0, "concurrency": 8, **changes})


async def silent(store, worker, seconds=60):
    await store.all("update worker set heartbeat_at = clock_timestamp() - make_interval(secs => :s) where id = :id",
                    s=seconds, id=worker)


async def test_a_worker_without_heartbeat_is_buried_and_learns_it(store):
    quiet, alive = await join(store), await join(store)
    assert await store.do(sweeps.beat, quiet, 3, {"lag_ms": 1})
    await silent(store, quiet)
    assert await store.do(sweeps.bury, 20.0) == 1
    assert await store.do(sweeps.bury, 20.0) == 0
    assert not await store.do(sweeps.beat, quiet, 3, {})
    assert await store.do(sweeps.beat, alive, 3, {})


async def test_a_worker_that_left_is_not_dead(store):
    worker = await join(store)
    await store.do(sweeps.leave, worker)
    await silent(store, worker)
    assert await store.do(sweeps.bury, 20.0) == 0


async def test_a_known_death_needs_no_waiting(store):
    worker, neighbour = await join(store), await join(store)
    assert await store.do(sweeps.bury, 1e9, [worker]) == 1
    assert await store.do(sweeps.beat, neighbour, 0, {})


async def test_samples_of_the_dead_come_back_and_those_of_the_living_stay(store):
    dead, alive = await join(store), await join(store)
    ids = await store.samples(await store.dataset(), 6)
    await store.claim(ids[:4], dead)
    await store.claim(ids[4:], alive)
    await store.do(sweeps.bury, 1e9, [dead])
    assert await store.do(sweeps.rescue) == 4
    assert await store.do(sweeps.rescue) == 0
    assert [(await store.sample(i)).state for i in ids] == [State.QUEUED] * 4 + [State.RUNNING] * 2
    assert not (await store.sample(ids[0])).crashes
    await store.check_counters()


async def test_a_claim_that_was_committed_after_its_worker_left_comes_back_too(store):
    worker = await join(store)
    [s] = await store.samples(await store.dataset())
    await store.do(sweeps.leave, worker)
    await store.claim([s], worker)
    assert await store.do(sweeps.rescue) == 1


async def test_a_worker_that_was_declared_dead_claims_nothing_under_its_old_name(store):
    worker, other = await join(store), await join(store)
    [s] = await store.samples(await store.dataset())
    await store.do(sweeps.bury, 1e9, [worker])
    assert not await store.claim([s], worker)
    assert list(await store.claim([s], other)) == [s]


async def test_a_rescue_works_in_portions(store):
    worker = await join(store)
    await store.claim(await store.samples(await store.dataset(), 7), worker)
    await store.do(sweeps.bury, 1e9, [worker])
    assert [await store.do(sweeps.rescue, 3) for _ in range(4)] == [3, 3, 1, 0]


async def test_a_lost_call_is_booked_as_the_mean_answer_or_its_reservation(store):
    worker = await join(store)
    d = await store.dataset(money_budget_usd=1.0, usd_per_million_tokens=10.0)
    first, second, third = await store.samples(d, 3)
    await store.claim([first], worker)
    await store.do(sweeps.bury, 1e9, [worker])
    await store.do(sweeps.rescue)
    attempt = await store.one("select completion_tokens, cost_nusd, basis, code, action from attempt")
    assert attempt == (SHORT_MAX, 10_000 * SHORT_MAX, "estimate", "worker_lost", "rescue")
    another = await join(store)
    await store.settle(done(await store.claimed(second, another), 30))
    await store.claim([third], another)
    await store.do(sweeps.bury, 1e9, [another])
    await store.do(sweeps.rescue)
    assert (await store.one("select completion_tokens from attempt where sample_id = :s", s=third)) == (30,)
    await store.check_counters()


async def test_a_poison_prompt_fails_after_three_crashes_and_its_neighbours_are_not_blamed(store):
    d = await store.dataset()
    poison, *neighbours = await store.samples(d, 4)
    for _ in range(MAX_CRASHES):
        worker = await join(store)
        assert len(await store.claim([poison, *neighbours], worker)) == 4
        assert await store.do(sweeps.blame, worker, [poison]) == 1
        await store.do(sweeps.bury, 1e9, [worker])
        assert await store.do(sweeps.rescue) == 4
    row = await store.sample(poison)
    assert (row.state, row.reason) == (State.FAILED, "poison")
    assert [(await store.sample(n)).crashes for n in neighbours] == [0, 0, 0]
    assert len(await store.claim([poison, *neighbours], await join(store))) == 3
    await store.check_counters()


async def test_a_death_that_is_reported_after_the_rescue_counts_too(store):
    worker, other = await join(store), await join(store)
    in_hand, neighbour = await store.samples(await store.dataset(), 2)
    await store.claim([in_hand, neighbour], worker)
    await store.do(sweeps.bury, 1e9, [worker])
    await store.do(sweeps.rescue)
    assert await store.do(sweeps.blame, other, [in_hand]) == 0
    assert await store.do(sweeps.blame, worker, [in_hand]) == 1
    assert ((await store.sample(in_hand)).crashes, (await store.sample(neighbour)).crashes) == (1, 0)


async def test_a_third_death_that_is_reported_after_the_rescue_ends_the_sample_at_once(store):
    [poison] = await store.samples(await store.dataset())
    for deaths in range(1, MAX_CRASHES + 1):
        worker = await join(store)
        await store.claim([poison], worker)
        await store.do(sweeps.bury, 1e9, [worker])
        await store.do(sweeps.rescue)
        assert await store.do(sweeps.blame, worker, [poison]) == 1
        await store.check_counters()
        assert (await store.sample(poison)).crashes == deaths
    row = await store.sample(poison)
    assert (row.state, row.reason) == (State.FAILED, "poison")
    assert not await store.claim([poison], await join(store))


async def test_a_death_that_is_reported_while_its_rescue_is_under_way_counts_too(store):
    """The blame waits for the rescue's lock, and then sees the sample as it is but the attempt as it was."""
    worker = await join(store)
    [in_hand] = await store.samples(await store.dataset())
    await store.claim([in_hand], worker)
    await store.do(sweeps.bury, 1e9, [worker])
    blaming = []

    def rescued(connection):
        sweeps.rescue(connection)
        blaming.append(asyncio.get_running_loop().create_task(store.do(sweeps.blame, worker, [in_hand])))
        while not connection.execute(text("select count(*) from pg_locks where not granted")).scalar():
            pass

    await store.whole(rescued)
    assert await blaming[0] == 1
    assert (await store.sample(in_hand)).crashes == 1


async def test_only_who_ran_a_sample_when_it_died_is_a_reason_to_blame(store):
    first, second = await join(store), await join(store)
    [s] = await store.samples(await store.dataset())
    claim = await store.claimed(s, first)
    assert await store.do(sweeps.blame, second, [s, 99]) == 0
    await store.settle(ended(claim, Event.RETRY))
    assert await store.do(sweeps.blame, first, [s]) == 0


async def test_what_a_worker_holds_is_told_with_its_fences(store):
    a, b = await store.samples(await store.dataset(), 2)
    await store.settle(ended(await store.claimed(a, 1), Event.RETRY))
    await store.claimed(a, 1)
    await store.claimed(b, 2)
    assert await store.do(sweeps.held_by, 1) == [(a, 2)]


async def test_one_session_leads(store):
    async with store.engine.connect() as first, store.engine.connect() as second:
        assert await first.run_sync(sweeps.lead, 60.0)
        assert await first.run_sync(sweeps.lead, 60.0)
        assert not await second.run_sync(sweeps.lead, 60.0)
        await first.invalidate()                            # its session ends, and its lock with it
        for _ in range(100):
            if await second.run_sync(sweeps.lead, 60.0):
                return
    raise AssertionError("the lock outlived its session")


async def test_workers_of_last_week_are_forgotten(store):
    old, busy, fresh = [await join(store) for _ in range(3)]
    await store.claim(await store.samples(await store.dataset()), busy)
    for worker in (old, busy, fresh):
        await store.do(sweeps.leave, worker)
    await store.all("update worker set stopped_at = stopped_at - interval '8 days' where id <> :id", id=fresh)
    assert await store.do(sweeps.forget_workers) == 1
    assert [w.id for w in await store.all("select id from worker order by id")] == [busy, fresh]
