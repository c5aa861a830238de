"""The one leading process that tidies up: budgets, dead workers, queues. Admission needs none of it to be right.

`reap_once` does one round and returns counts; `reap` leads under an advisory lock and repeats it.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic, time

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from models.base import connect_async, perform, perform_whole, translating
from models.errors import BrokerAway, StoreError
from models.health import drifted
from models.hint import Hints, queue_of
from models.settings import Settings
from models.states import Closed, DatasetState, Lane
from models.store import datasets, forecasts, providers, purses, spending, sweeps
from models.store.datasets import Dataset
from models.window import top_up

log = structlog.get_logger()
FOLLOW_S = 2.0
LONGEST_ROUND_S = 20.0         # a leader that is frozen for longer gives way to another
LOOK_EVERY_S = 10.0            # at every call of a dataset, for waste and for providers that drift


@dataclass(frozen=True, slots=True)
class Round:
    """What one round did."""

    closed: int = 0
    dead: int = 0
    rescued: int = 0
    hinted: int = 0


class Reaper:
    def __init__(self, settings: Settings, engine: AsyncEngine, hints: Hints) -> None:
        self._settings, self._engine, self._hints = settings, engine, hints
        self._purged: set[str] = set()     # queues of closed datasets that hold no hints of ours any more
        self._round_at, self._doubt_until = _clocks(), 0.0
        self._looked_at = -LOOK_EVERY_S
        self.totals: Counter[str] = Counter()

    async def reap_once(self) -> Round:
        """One round. StoreError when the database fails it; a broker that is away only delays hints."""
        dead = await perform(self._engine, sweeps.bury, self._settings.dead_after_s) if self._trusts_heartbeats() else 0
        rescued = await perform(self._engine, sweeps.rescue)
        await perform_whole(self._engine, forecasts.refresh)
        await perform(self._engine, purses.deal)
        ended = await perform(self._engine, datasets.at_budget)
        if monotonic() - self._looked_at > LOOK_EVERY_S:
            self._looked_at = monotonic()
            ended = {**ended, **dict.fromkeys(await perform(self._engine, spending.wasteful), Closed.WASTE)}
            await self._exclude_drifting()
        closed = await self._close(ended)
        hinted = 0
        try:
            hinted = await self._tend_queues(await perform(self._engine, datasets.every))
        except BrokerAway as error:
            log.warning("broker_away", cause=str(error))
        self._round_at = _clocks()
        done = Round(closed, dead, rescued, hinted)
        self.totals.update(closed=closed, dead=dead, rescued=rescued, hinted=hinted)
        return done

    def _trusts_heartbeats(self) -> bool:
        """Not after a gap between rounds: what kept us from the database, or this machine from running, kept all workers
        from beating too. They get the time to beat that any worker gets, before 2,500 calls are paid for twice."""
        gap_s = max(now - then for now, then in zip(_clocks(), self._round_at, strict=True))
        if gap_s > self._settings.dead_after_s / 2:
            self._doubt_until = monotonic() + self._settings.dead_after_s
        return monotonic() >= self._doubt_until

    async def _exclude_drifting(self) -> None:
        for dataset_id, known in (await perform(self._engine, providers.opened)).items():
            found = drifted([h for h in await perform(self._engine, providers.health, dataset_id) if h.provider not in known])
            if found:
                await perform(self._engine, providers.exclude, dataset_id, found)
                log.warning("providers_excluded", dataset=dataset_id, providers=found)

    async def _close(self, ended: Mapping[int, Closed]) -> int:
        closed = 0
        for dataset_id, reason in ended.items():
            if await perform(self._engine, datasets.close, dataset_id, reason):
                closed += 1
                log.info("dataset_closed", dataset=dataset_id, reason=str(reason))
        return closed

    async def _tend_queues(self, known: list[Dataset]) -> int:
        for dataset in known:
            for queue in (queue_of(lane, dataset.name) for lane in Lane):
                if dataset.state is DatasetState.OPEN:
                    self._purged.discard(queue)
                elif queue not in self._purged:
                    await self._hints.cancel(queue)
                    await self._hints.purge(queue)
                    self._purged.add(queue)
        open_ones = [d for d in known if d.state is DatasetState.OPEN]
        return await top_up(self._engine, self._hints, open_ones, self._settings.hint_window) if open_ones else 0


def _clocks() -> tuple[float, float]:
    """One that stands still while the machine sleeps, and one that does not."""
    return monotonic(), time()


async def reap(settings: Settings, stop: asyncio.Event) -> None:
    """Lead while this process can, follow while another does, until `stop`."""
    assert settings.database_url is not None
    assert settings.redis_url is not None
    engine = connect_async(settings.database_url.get_secret_value(), size=3)
    hints = Hints(settings.redis_url.get_secret_value(), settings.key_prefix)
    reaper = Reaper(settings, engine, hints)
    try:
        while not stop.is_set():
            try:
                await _lead(reaper, engine, settings, stop)
            except StoreError as error:
                log.warning("reaper_waits", cause=str(error))
            await _sleep(stop, FOLLOW_S)
    finally:
        await hints.close()
        await engine.dispose()


async def _lead(reaper: Reaper, engine: AsyncEngine, settings: Settings, stop: asyncio.Event) -> None:
    """Rounds for as long as the lock's own connection lives: a leader that lost it must not go on."""
    idle_s = LONGEST_ROUND_S + settings.reap_every_s
    async with _session(engine) as lock:
        if not await _leads(lock, idle_s):
            return
        log.info("reaper_leads")
        await perform(engine, sweeps.forget_workers)
        while not stop.is_set() and await _leads(lock, idle_s):
            done = await reaper.reap_once()
            if done != Round(hinted=done.hinted):
                log.info("reaped", closed=done.closed, dead=done.dead, rescued=done.rescued, hinted=done.hinted)
            await _sleep(stop, settings.reap_every_s)


@asynccontextmanager
async def _session(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """A connection that is not given back to the pool, where its session would go on holding the lock."""
    with translating():
        connection = await engine.connect().start()
    try:
        yield connection
    finally:
        await connection.invalidate()
        await connection.close()


async def _leads(connection: AsyncConnection, idle_s: float) -> bool:
    with translating():
        return await connection.run_sync(sweeps.lead, idle_s)


async def _sleep(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass
