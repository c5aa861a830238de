"""What a claim and a settlement read does not depend on how many samples there are, nor on what the statistics say of them.

A plan made when all samples were queued (or running, or done) may walk a whole partial index later. What counts is what was
read, so PostgreSQL's own counters are asked: they cover the very statements that workers run, generic plans included.
"""

import pytest

from models.base import connect_async
from models.states import Lane, State
from models.store import datasets, samples
from tests.hand import Hand, done

BATCH = 100
TIMES = 8           # psycopg prepares a statement at its sixth execution
MOST_READS = 16     # index entries of one table for each sample of a batch, those of its dead versions included

READ = """
select relname, seq_tup_read,
  coalesce((select sum(idx_tup_read) from pg_stat_user_indexes i where i.relid = t.relid), 0) as by_key
from pg_stat_user_tables t where relname in ('sample', 'attempt', 'completion', 'partial')"""


@pytest.fixture
async def alone(database):
    """One connection as workers have it, so that its statistics can be flushed."""
    engine = connect_async(database, size=1)
    yield Hand(engine)
    await engine.dispose()


async def fill(store, n, state=State.QUEUED):
    """n samples of the usual size in `state`, and statistics that say so and stay so."""
    d = await store.dataset()
    for table in ("sample", "attempt", "completion", "partial"):
        await store.all(f"alter table {table} set (autovacuum_enabled = false)")
    for first in range(1, n + 1, 50_000):      # a worker's statement may take 30 s at most
        last = min(n, first + 49_999)
        await store.all("""insert into sample (dataset_id, key, primary_id, prompt, state, worker_id)
            select :d, 'k' || i, 'k' || i, decode(repeat('00', 600), 'hex'), :state, case when :state = 1 then 1 end
            from generate_series(cast(:first as int), :last) as i""", d=d, state=int(state), first=first, last=last)
    await store.all("update dataset set samples = :n", n=n)
    await store.all("analyze")
    return d


async def reads(store, what):
    """Rows read of each table by `what`: ({table: by key}, [tables that were scanned])."""
    async def counted():
        await store.all("select pg_stat_force_next_flush()")
        return {r.relname: (r.seq_tup_read, int(r.by_key)) for r in await store.all(READ)}
    before = await counted()
    await what
    after = await counted()
    return ({t: after[t][1] - before[t][1] for t in after}, [t for t in after if after[t][0] > before[t][0]])


async def work(store, ids):
    taken = await store.claim(ids)
    assert len(taken) == len(ids)
    assert len(await store.settle(*[done(c) for c in taken.values()])) == len(ids)


async def measured(store, n, state):
    await fill(store, n, state)
    await store.all("update sample set state = 0, worker_id = null where id <= :most", most=BATCH * TIMES)
    for start in range(1, BATCH * (TIMES - 1), BATCH):
        await work(store, range(start, start + BATCH))
    return await reads(store, work(store, range(BATCH * (TIMES - 1) + 1, BATCH * TIMES + 1)))


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.DONE])
async def test_a_claim_and_its_settlement_read_rows_by_key_alone_under_stale_statistics(alone, state):
    by_key, scanned = await measured(alone, 100_000, state)
    assert scanned == []
    assert max(by_key.values()) <= MOST_READS * BATCH, by_key


@pytest.mark.slow
@pytest.mark.parametrize("state", [State.QUEUED, *(pytest.param(s, marks=pytest.mark.full) for s in (State.RUNNING, State.DONE))])
async def test_the_same_holds_for_a_million_samples(alone, state):
    by_key, scanned = await measured(alone, 1_000_000, state)
    assert scanned == []
    assert max(by_key.values()) <= MOST_READS * BATCH, by_key


async def test_a_claim_reads_as_much_at_a_hundred_thousand_samples_as_at_two_thousand(alone, new_database):
    engine = connect_async(new_database(), size=1)
    small, _ = await measured(Hand(engine), 2_000, State.QUEUED)
    await engine.dispose()
    large, _ = await measured(alone, 100_000, State.QUEUED)
    assert sum(large.values()) <= 1.2 * sum(small.values())


@pytest.mark.parametrize("state", [State.QUEUED, State.DONE])
async def test_filling_a_window_reads_the_window_and_not_the_queue(alone, state):
    """Neither what is done already, nor what is hinted already, nor what waits behind."""
    window = 500
    d = await fill(alone, 100_000, state)
    await alone.all("update sample set state = case when id <= 40000 then 2 else 0 end")
    await alone.all("update sample set hinted_at = clock_timestamp() where id between 40001 and 60000")
    await alone.all("vacuum (index_cleanup on) sample")
    for _ in range(TIMES):
        assert len(await alone.do(samples.hintable, d, Lane.SHORT, window)) == window
    by_key, scanned = await reads(alone, alone.do(samples.hintable, d, Lane.SHORT, window))
    assert scanned == []
    assert by_key["sample"] <= (TIMES + 4) * window, by_key    # dead entries of the rounds before


@pytest.mark.parametrize("state", [State.QUEUED, State.DONE])
async def test_whether_a_dataset_is_at_its_budget_is_asked_of_one_waiting_sample(alone, state):
    await fill(alone, 100_000, state)
    await alone.all("update sample set state = case when id <= 50000 then 2 else 0 end")
    await alone.all("update dataset set token_budget = 1000000000")
    await alone.all("vacuum (index_cleanup on, analyze) sample")
    for _ in range(TIMES):
        assert await alone.do(datasets.at_budget) == {}
    by_key, scanned = await reads(alone, alone.do(datasets.at_budget))
    assert scanned == []
    assert by_key["sample"] <= 10, by_key
