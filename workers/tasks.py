"""A worker process: what it holds, how it starts, beats and stops. The composition root of the room."""

import asyncio
import hashlib
import os
import random
import resource
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from urllib.parse import urlsplit

import structlog
from redis.asyncio import Redis
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncEngine

from models.base import connect_async, open_all, perform, perform_whole
from models.errors import SettingsError, StoreError
from models.hint import queue_of
from models.plan import Account
from models.settings import Settings
from models.states import Closed, DatasetState, Lane
from models.store import calibrations, datasets, forecasts, sweeps
from models.store.bills import Unbilled
from models.store.datasets import Dataset
from workers import bills
from workers.app import run_worker
from workers.asking import Endpoint, Work, hang_up
from workers.generate import WAITERS, Waiting, generate
from workers.hands import Hands, left_by_the_dead
from workers.heartbeat import Heartbeat
from workers.ledger import Ledger
from workers.limiter import Limiter
from workers.pool import Life
from workers.providers import connect
from workers.providers.base import Provider
from workers.rebuild import Rebuilder
from workers.spool import Spool

log = structlog.get_logger()
LOOK_EVERY_S = 1.5
CALIBRATIONS_EVERY_S = 30.0
BILLS_EVERY_S = 1.0
SPARE_OF = 32               # a slot of the pool more for so many calls in flight
UNWANTED = (Closed.BUDGET, Closed.MONEY, Closed.WASTE)     # what is still to come of a dataset closed for these


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
        self.places = asyncio.Semaphore(concurrency)
        self.calls: dict[int, Work] = {}
        self.waiting = Waiting(max(1, min(WAITERS, concurrency // 8)))   # of a small lane they would take all slots
        self._lag_s = 0.0
        self._rejoining: asyncio.Task[None] | None = None
        self._calibrated_at = -CALIBRATIONS_EVERY_S

    def life(self) -> Life:
        return Life(startup=self.startup, wanted_queues=self.wanted_queues, shutdown=self.shutdown,
                    grace_s=self._settings.grace_s)

    async def startup(self) -> None:
        self._engine: AsyncEngine = connect_async(self._database_url)
        self._redis: Redis = Redis.from_url(self._redis_url, socket_timeout=5, socket_connect_timeout=5)
        self._connecting = asyncio.Lock()
        self.id = await self._join()
        await open_all(self._engine)
        self._spool = Spool(self._place("spool"), str(self.id))
        self._hands = Hands(self._place("hands"), self.id)
        self.rebuilder = Rebuilder(self._hands, self._settings.token_threads, self._settings.home)
        self.ledger = Ledger(self._engine, self.id, self._lane, self._spool)
        self.ledger.start()
        self._loop = asyncio.get_running_loop()
        self._heart = Heartbeat(self._database_url, self._settings.heartbeat_s, self._beat, self._declared_dead)
        self._heart.start()             # to replay a spool and to open a vocabulary may take longer than a life
        await self._bury_predecessors()
        await self._look()
        for every_s, duty in ((LOOK_EVERY_S, self._look), (self._settings.heartbeat_s, self._tend),
                              (BILLS_EVERY_S, self._collect)):
            self._tasks.append(asyncio.create_task(self._again(every_s, duty)))

    def _place(self, name: str) -> Path:
        """A folder of this database alone: ids of another one mean other workers and samples."""
        url = urlsplit(self._database_url)
        return self._settings.home / name / hashlib.sha256(f"{url.password}{url.path}".encode()).hexdigest()[:12]

    async def _bury_predecessors(self) -> None:
        """What workers of this machine left when they died: paid answers in spools first, then who was in hand."""
        dead = list(left_by_the_dead(self._place("hands")))
        for _, worker_id, held in dead:
            await perform(self._engine, sweeps.blame, worker_id, held)
        if replayed := await self.ledger.replay(self._place("spool")):
            log.info("spool_replayed", settlements=replayed)
        for path, worker_id, _ in dead:
            await perform(self._engine, sweeps.bury, 1e9, [worker_id])
            path.unlink(missing_ok=True)

    async def _join(self) -> int:
        return await perform(self._engine, sweeps.join, name=self._name, host=socket.gethostname(), pid=os.getpid(),
                             lane=int(self._lane), concurrency=self._concurrency)

    async def shutdown(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.ledger.stop()
        await asyncio.to_thread(self._heart.stop)
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
        code = await generate(self, sample_id, dataset)
        log.debug("sample", sample=sample_id, dataset=dataset, lane=lane, code=code)

    # -- what the story asks for ---------------------------------------------------------------------------------------

    def dataset(self, name: str) -> Dataset | None:
        return self._datasets.get(name)

    async def endpoint(self, dataset: Dataset, sample_id: int) -> Endpoint:
        """The account for this sample: by weight where the plan gives weights, else the first of its list with room."""
        plan = dataset.plan
        endpoints = [await self._endpoint(name, dataset.accounts[name]) for name in plan.account_names()]
        if len(endpoints) == 1:
            return endpoints[0]
        weights = plan.account_weights()
        if weights is None:
            free = next((e for e in endpoints if e.limiter.spare > 0), None)
            return free or max(endpoints, key=lambda e: e.limiter.spare)
        standing = [(e, w) for e, w in zip(endpoints, weights, strict=True) if w and not e.limiter.halted]
        standing = standing or list(zip(endpoints, weights, strict=True))
        return random.Random(sample_id).choices([e for e, _ in standing], [w for _, w in standing])[0]

    def crowded(self, endpoint: Endpoint) -> bool:
        """Whether an account's waiting calls hold their part of this process already: the other accounts' calls need theirs."""
        part = self._concurrency / len(self._endpoints)
        return len(self._endpoints) > 1 and endpoint.limiter.spare < 1 and endpoint.limiter.waiting >= part

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
        unwanted = {d.name for d in known if d.closed_reason in UNWANTED}
        if calls := [w for w in self.calls.values() if w.dataset.name in unwanted]:
            hang_up(calls)
        await perform_whole(self._engine, forecasts.refresh)   # whoever sees that it is due: no reaper is needed
        if monotonic() - self._calibrated_at > CALIBRATIONS_EVERY_S:
            self.rebuilder.conventions = await perform(self._engine, calibrations.newest)
            self._calibrated_at = monotonic()

    async def _collect(self) -> None:
        await bills.collect(self._engine, self._asked)

    async def _asked(self, call: Unbilled) -> Provider | None:
        dataset = next((d for d in self._datasets.values() if d.id == call.dataset_id), None)
        account = dataset.accounts.get(call.account) if dataset else None
        return (await self._endpoint(call.account, account)).provider if account else None

    def _beat(self, connection: Connection) -> bool:
        """In the heartbeat's thread."""
        facts = {"lag_ms": round(self._lag_s * 1000), "token_wait_ms": round(self.rebuilder.wait_s * 1000),
                 "spool": self._spool.waiting, "fenced": self.ledger.fenced, "away": self.ledger.away}
        self._beaten = self.id
        return sweeps.beat(connection, self._beaten, len(self.calls), facts)

    async def _tend(self) -> None:
        self._heart.lives()
        await self.ledger.give_back_strays()

    def _declared_dead(self) -> None:
        """In the heartbeat's thread."""
        self._loop.call_soon_threadsafe(self._rejoin_once, self._beaten)

    def _rejoin_once(self, dead: int) -> None:
        if dead == self.id and (self._rejoining is None or self._rejoining.done()):
            self._rejoining = asyncio.create_task(self._rejoin(dead))

    async def _rejoin(self, dead: int) -> None:
        """Its samples are queued again: late answers are refused by their fences, their cost is booked, and new claims are
        made under a new name.
        """
        log.error("worker_was_declared_dead", worker=dead)
        with suppress(StoreError):      # else the next beat tells it again
            self.id = await self._join()
            self.ledger.rejoin(self.id)
            self._hands.rejoin(self.id)


def work(settings: Settings, lane: Lane, concurrency: int, name: str) -> int:
    """Run a worker until a signal ends it; its exit code."""
    settings.home.mkdir(parents=True, exist_ok=True)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))    # a connection per request in flight
    worker = Worker(settings, lane, concurrency, name)
    # While one sample's row is written, and its next hint comes, another is asked already.
    return run_worker(settings, lane, concurrency + concurrency // SPARE_OF, name, worker.generate, worker.life())
