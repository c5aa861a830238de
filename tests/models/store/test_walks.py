"""Random walks: whatever happens in whatever order, counters are the sums over their rows, and nobody ever deadlocks."""

import asyncio
import random

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from models import blob
from models.base import connect_async, translated
from models.states import Event, Lane
from models.store import claims, samples, settlements, sweeps
from models.store.samples import Selection
from models.store.settlements import NextTurn
from tests.hand import Hand, done, ended, stored

EVENTS = [Event.RETRY, Event.SNOOZE, Event.PROMOTE, Event.RELEASE, Event.DROP]
HUNT_S = 4.0


def outcome(claim, dice):
    """Some end of a claim, good ones the most."""
    if dice.random() < 0.6:
        n = dice.randint(1, 100)
        follow = NextTurn(f"{claim.primary_id}#t{claim.turn + 1}", claim.turn + 1, 0, blob.pack_json({})) if n > 80 else None
        return done(claim, n, next_turn=follow,
                    row=stored(n, truncated=n > 60, trainable=dice.random() < 0.8, grade=dice.randint(0, 5)))
    event = dice.choice(EVENTS)
    return ended(claim, event, completion_tokens=dice.randint(0, 50), cost_nusd=dice.randint(0, 9_999), burns=dice.random() < 0.5,
                 basis="estimate", stored=stored(7) if event is Event.PROMOTE else None, blamed=dice.random() < 0.1)


class Walk:
    """One client's random steps. It remembers all it ever claimed, so that late and repeated settlements happen often."""

    def __init__(self, do, whole, datasets, ids, seed):
        self.do, self.whole, self.datasets, self.ids = do, whole, datasets, ids
        self.dice, self.claims, self.settled, self.records = random.Random(seed), [], [], []
        self.steps = [self.claim] * 5 + [self.settle] * 5 + [
            self.repeat, self.die, self.requeue, self.undo, self.blame, self.add, self.hint]
        self.worker = None

    async def step(self):
        self.worker = self.worker or await self._join()
        await self.dice.choice(self.steps)()

    async def _join(self):
        return await self.do(sweeps.join, name="w", host="h", pid=1, lane=0, concurrency=1)

    async def claim(self):
        wanted = [(i, "home") for i in self.dice.sample(self.ids, min(len(self.ids), 20))]
        lane = self.dice.choice([Lane.SHORT, Lane.SHORT, Lane.LONG])
        self.claims += (await self.do(claims.claim, wanted, self.worker, lane)).values()

    async def settle(self):
        self.dice.shuffle(self.claims)
        batch = [outcome(self.claims.pop(), self.dice) for _ in range(min(len(self.claims), self.dice.randint(1, 20)))]
        if batch:
            await self.do(settlements.settle, batch)
            self.settled += batch

    async def repeat(self):
        batch = self.dice.sample(self.settled, min(len(self.settled), 10))
        if batch:
            await self.do(settlements.settle, batch)

    async def die(self):
        """This worker dies and is rescued; it goes on under another name, and its late answers are refused."""
        await self.do(sweeps.bury, 1e9, [self.worker])
        await self.do(sweeps.rescue, 50)
        self.worker = await self._join()

    async def blame(self):
        await self.do(sweeps.blame, self.worker, self.dice.sample(self.ids, min(len(self.ids), 5)))

    async def requeue(self):
        dataset, truncated = self.dice.choice(self.datasets), self.dice.random() < 0.5

        def verb(connection):
            rows = samples.select(connection, Selection(dataset, truncated=truncated, limit=self.dice.randint(1, 15)))
            lane = self.dice.choice([None, Lane.LONG])
            return samples.requeue(connection, rows, lane=lane, max_tokens=None, who="me", what={})[1] if rows else None

        self.records.append(await self.whole(verb))

    async def undo(self):
        if record := self.records.pop() if self.records else None:
            await self.whole(samples.undo, record)

    async def add(self):
        rows = [samples.NewSample(f"n{self.dice.randint(0, 200)}", "n", 0, Lane.SHORT, None, b"") for _ in range(5)]
        await self.do(samples.add, self.dice.choice(self.datasets), rows)

    async def hint(self):
        await self.do(samples.hintable, self.dice.choice(self.datasets), Lane.SHORT, 10, 0.0)


async def prepared(store, n=150):
    datasets = [await store.dataset("strict", token_budget=8_000),
                await store.dataset("forecast", budget_mode="forecast", token_budget=9_000),
                await store.dataset("money", money_budget_usd=0.5)]
    return datasets, [i for d in datasets for i in await store.samples(d, n)]


@pytest.mark.parametrize("seed", range(4))
async def test_counters_are_the_sums_over_their_rows_after_any_sequence(store, seed):
    datasets, ids = await prepared(store, 25)
    walk = Walk(store.do, store.whole, datasets, ids, seed)
    for step in range(150):
        await walk.step()
        if step % 10 == 0:
            await store.check_counters()
    await store.check_counters()
    strict = await store.one("select stored_tokens + reserved_tokens as held, token_budget from dataset where name = 'strict'")
    assert strict.held <= strict.token_budget
    spread = await store.one("select count(distinct state) as states, count(*) filter (where fence > 1) as again from sample")
    assert spread.states >= 3
    assert spread.again > 5


async def test_clients_in_any_order_never_deadlock(store, database):
    """Errors are counted before they are retried anywhere; PostgreSQL's own count must agree."""
    datasets, ids = await prepared(store)
    engines, steps = [connect_async(database, size=1) for _ in range(6)], 0
    over = asyncio.get_running_loop().time() + HUNT_S

    async def client(seed):
        nonlocal steps
        hand = Hand(engines[seed])
        walk = Walk(hand.do, hand.whole, datasets, ids, 100 + seed)
        while asyncio.get_running_loop().time() < over:
            await walk.step()
            steps += 1

    results = await asyncio.gather(*(client(n) for n in range(len(engines))), return_exceptions=True)
    for engine in engines:
        await engine.dispose()
    errors = [r for r in results if r is not None]
    assert errors == []
    deadlocks = await store.one("select deadlocks from pg_stat_database where datname = current_database()")
    assert deadlocks.deadlocks == 0
    assert steps > 200
    await store.check_counters()


async def test_a_deadlock_would_have_been_seen(store):
    """The counter that the hunt trusts does count."""
    a, b = await store.samples(await store.dataset(), 2)
    lock = text("select from sample where id = :id for update")
    seen = []

    async def both(first, second, go, ready):
        async with store.engine.connect() as connection:
            await connection.execution_options(isolation_level="READ COMMITTED")
            async with connection.begin():
                await connection.execute(lock, {"id": first})
                ready.set()
                await go.wait()
                try:
                    await connection.execute(lock, {"id": second})
                except DBAPIError as error:
                    seen.append(str(translated(error)))

    one, two = asyncio.Event(), asyncio.Event()
    await asyncio.gather(both(a, b, one, two), both(b, a, two, one), return_exceptions=True)
    assert len(seen) == 1
    assert "40P01" in seen[0]
