"""A worker process: what it holds, how it starts, beats and stops. The composition root of the room."""

import asyncio
import os
import random
import resource
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic

import structlog
from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncEngine

from models.base import connect_async, perform, perform_whole
from models.errors import SettingsError, StoreError
from models.hint import queue_of
from models.plan import Account
from models.settings import Settings
from models.states import DatasetState, Lane
from models.store import calibrations, datasets, forecasts, settlements, sweeps
from models.store.datasets import Dataset
from workers import spool
from workers.app import run_worker
from workers.bills import Bills
from workers.generate import Endpoint, Waiting, generate
from workers.hands import Hands, left_by_the_dead
from workers.ledger import Ledger
from workers.limiter import Limiter
from workers.pool import Life
from workers.providers import connect
from workers.rebuild import Rebuilder
from workers.spool import Spool

log = structlog.get_logger()
LOOK_EVERY_S = 1.5
CALIBRATIONS_EVERY_S = 30.0
BILLS_EVERY_S = 1.0


class Worker:
    """Everything one process holds; `generate` is handed it for each sample."""

    def __init__(self, settings: Settings, lane: Lane, concurrency: int, name: str) -> None:
        if settings.database_url is None or settings.redis_url is None:
            raise SettingsError(cause="a worker needs DRAFTMILL_DATABASE_URL and DRAFTMILL_REDIS_URL, or a running `up`")
        self._settings, self._lane, self._concurrency, self._name = settings, lane, concurrency, name
        self._database_url, self._redis_url = settings.database_url.get_secret_value(), settings.redis_url.get_secret_value()
        self._datasets: dict[str, Dataset] = {}
        self._endpoints: dict[str, Endpoint] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._in_flight = 0
        self.waiting = Waiting()
        self._lag_s = 0.0
        self._calibrated_at = -CALIBRATIONS_EVERY_S

    def life(self) -> Life:
        return Life(startup=self.startup, wanted_queues=self.wanted_queues, shutdown=self.shutdown,
                    grace_s=self._settings.grace_s)

    async def startup(self) -> None:
        self._engine: AsyncEngine = connect_async(self._database_url)
        self._redis: Redis = Redis.from_url(self._redis_url, socket_timeout=5, socket_connect_timeout=5)
        self._connecting = asyncio.Lock()
        await self._bury_predecessors()
        self.id = await self._join()
        self._spool = Spool(self._settings.home / "spool", str(self.id))
        self._hands = Hands(self._settings.home / "hands", self.id)
        self.rebuilder = Rebuilder(self._hands, self._settings.token_threads, self._settings.home)
        self.ledger = Ledger(self._engine, self.id, self._lane, self._spool)
        self.ledger.start()
        self.bills = Bills(self._engine)
        await self._look()
        for every_s, duty in ((LOOK_EVERY_S, self._look), (self._settings.heartbeat_s, self._beat),
                              (BILLS_EVERY_S, self._collect)):
            self._tasks.append(asyncio.create_task(self._again(every_s, duty)))

    async def _bury_predecessors(self) -> None:
        """What workers of this machine left when they died: who was in hand, and paid answers in spools."""
        for path, worker_id, held in left_by_the_dead(self._settings.home / "hands"):
            await perform(self._engine, sweeps.blame, worker_id, held)
            await perform(self._engine, sweeps.bury, 1e9, [worker_id])
            path.unlink(missing_ok=True)
        for path, waiting in spool.orphaned(self._settings.home / "spool"):
            for start in range(0, len(waiting), 100):
                await perform(self._engine, settlements.settle, waiting[start:start + 100])
            log.info("spool_replayed", settlements=len(waiting))
            path.unlink(missing_ok=True)

    async def _join(self) -> int:
        return await perform(self._engine, sweeps.join, name=self._name, host=socket.gethostname(), pid=os.getpid(),
                             lane=int(self._lane), concurrency=self._concurrency)

    async def shutdown(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.ledger.stop()
        for endpoint in self._endpoints.values():
            await endpoint.limiter.close()
            await endpoint.provider.aclose()
        with suppress(StoreError):
            await self.ledger.give_back_strays()
            await perform(self._engine, sweeps.leave, self.id)
        self.rebuilder.close()
        self._spool.close()
        self._hands.close()
        await self._redis.aclose()
        await self._engine.dispose()

    async def wanted_queues(self) -> set[str]:
        return {queue_of(self._lane, d.name) for d in self._datasets.values()
                if d.state is DatasetState.OPEN and d.plan.profile in self.rebuilder.opened}

    async def generate(self, sample_id: int, dataset: str, lane: str) -> None:
        self._in_flight += 1
        try:
            code = await generate(self, sample_id, dataset)
            log.debug("sample", sample=sample_id, dataset=dataset, lane=lane, code=code)
        finally:
            self._in_flight -= 1

    # -- what the story asks for ---------------------------------------------------------------------------------------

    def dataset(self, name: str) -> Dataset | None:
        return self._datasets.get(name)

    async def endpoint(self, dataset: Dataset, sample_id: int) -> Endpoint:
        """The account for this sample: by weight where the plan gives weights, the first with room otherwise."""
        names = dataset.plan.account_names()
        if len(names) > 1:
            weights = [dataset.plan.account[n] if isinstance(dataset.plan.account, dict) else 1.0 for n in names]
            names = random.Random(sample_id).choices(names, weights)
        return await self._endpoint(names[0], dataset.accounts[names[0]])

    async def close(self, dataset: Dataset, reason: str) -> None:
        if await perform(self._engine, datasets.close, dataset.id, reason):
            log.error("dataset_closed", dataset=dataset.name, reason=reason)
        self._datasets.pop(dataset.name, None)

    async def _endpoint(self, name: str, account: Account) -> Endpoint:
        known = self._endpoints.get(name)
        if known is None or known.account != account:
            def key() -> str | None:
                secret = self._settings.key_of(name, account)
                return secret.get_secret_value() if secret else None
            async with self._connecting:
                if self._endpoints.get(name) is known:
                    provider = await connect(account.kind, account.base_url, key, self._concurrency + 16)
                    self._endpoints[name] = Endpoint(name, account, provider, self._limiter(name, account))
        return self._endpoints[name]

    def _limiter(self, name: str, account: Account) -> Limiter:
        slow = account.kind == "openrouter" if account.slow_start is None else account.slow_start
        limiter = Limiter(self._redis, name, f"{self.id}", account.max_in_flight, prefix=self._settings.key_prefix,
                          start=None if slow else account.max_in_flight)
        limiter.start()
        return limiter

    # -- what it does every few seconds ----------------------------------------------------------------------------------

    async def _again(self, every_s: float, duty: Callable[[], Awaitable[None]]) -> None:
        while True:
            due = monotonic() + every_s
            await asyncio.sleep(every_s)
            self._lag_s = monotonic() - due
            try:
                await duty()
            except StoreError as error:
                log.warning("duty_failed", cause=str(error))

    async def _look(self) -> None:
        """Datasets and conventions as they are now."""
        known = await perform(self._engine, datasets.every)
        for dataset in known:
            if dataset.plan.profile not in self.rebuilder.opened:
                await self.rebuilder.open(dataset.plan.profile)
        self._datasets = {d.name: d for d in known}
        await perform_whole(self._engine, forecasts.refresh)   # whoever sees that it is due: no reaper is needed
        if monotonic() - self._calibrated_at > CALIBRATIONS_EVERY_S:
            self.rebuilder.conventions = await perform(self._engine, calibrations.newest)
            self._calibrated_at = monotonic()

    async def _collect(self) -> None:
        await self.bills.collect()

    async def _beat(self) -> None:
        facts = {"lag_ms": round(self._lag_s * 1000), "token_wait_ms": round(self.rebuilder.wait_s * 1000),
                 "spool": self._spool.waiting, "fenced": self.ledger.fenced, "away": self.ledger.away}
        if not await perform(self._engine, sweeps.beat, self.id, self._in_flight, facts):
            # Declared dead while frozen: its samples are queued again. Late answers are refused by their fences and
            # their cost booked; new claims are made under a new name.
            log.error("worker_was_declared_dead", worker=self.id)
            self.id = await self._join()
            self.ledger.rejoin(self.id)
        await self.ledger.give_back_strays()


def work(settings: Settings, lane: Lane, concurrency: int, name: str) -> int:
    """Run a worker until a signal ends it; its exit code."""
    settings.home.mkdir(parents=True, exist_ok=True)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))    # a connection per request in flight
    worker = Worker(settings, lane, concurrency, name)
    return run_worker(settings, lane, concurrency, name, worker.generate, worker.life())
