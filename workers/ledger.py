"""Claims and settlements, batched across the coroutines of a worker (group commit).

One flush is under way per verb; while it runs the next batch collects. That halves PostgreSQL's CPU against a flush per
20 ms and keeps 2,500 requests in flight on a handful of connections. While the database is away claims wait, so no new
call starts, and settlements wait in the spool.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from models.base import perform
from models.errors import StoreAway, StoreError
from models.states import Event, Lane
from models.store import claims, settlements, sweeps
from models.store.claims import Claim
from models.store.settlements import Settlement
from workers.spool import Spool

log = structlog.get_logger()
In = TypeVar("In")
Out = TypeVar("Out")
MOST = 100          # rows a statement: the gain is flat from here on
APART_S = 0.05
BACK_OFF_S = (0.2, 5.0)


class Batcher(Generic[In, Out]):
    """Collects what coroutines put in and hands it to `flush` in batches, one at a time."""

    def __init__(self, flush: Callable[[list[In]], Awaitable[list[Out]]],
                 lost: Callable[[Out], None] = lambda result: None) -> None:
        self._flush, self._lost = flush, lost   # lost: a result whose waiter was cancelled meanwhile
        self._waiting: deque[tuple[In, asyncio.Future[Out]]] = deque()
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    async def put(self, item: In) -> Out:
        future: asyncio.Future[Out] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        self._wake.set()
        return await future

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            if len(self._waiting) < MOST:
                await asyncio.sleep(APART_S)
            batch = [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))]
            if not self._waiting:
                self._wake.clear()
            await self._serve([entry for entry in batch if not entry[1].cancelled()])

    async def _serve(self, batch: list[tuple[In, "asyncio.Future[Out]"]]) -> None:
        if not batch:
            return
        try:
            results = await self._flush([item for item, _ in batch])
        except StoreError as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():
                self._lost(result)
            else:
                future.set_result(result)


class NoRoom:
    """The answer to a claim whose dataset has no room in its budget until some of its answers in flight are settled."""


NO_ROOM = NoRoom()


class Ledger:
    """A worker's hand on the store. `held`: samples between their claim and their settlement."""

    def __init__(self, engine: AsyncEngine, worker_id: int, lane: Lane, spool: Spool) -> None:
        self._engine, self._worker_id, self._lane, self._spool = engine, worker_id, lane, spool
        self._claims: Batcher[tuple[int, str], Claim | NoRoom | None] = Batcher(self._claim, self._unclaimed)
        self._settlements: Batcher[Settlement, bool] = Batcher(self._settle)
        self._tasks: list[asyncio.Task[None]] = []
        self.held: dict[int, int] = {}
        self.away = False
        self.fenced = 0            # settlements refused by their fence

    def start(self) -> None:
        # With an empty context: a flush belongs to no sample.
        for batcher in (self._claims, self._settlements):
            self._tasks.append(asyncio.get_running_loop().create_task(batcher.run(), context=contextvars.Context()))

    async def stop(self, deadline_s: float = 10.0) -> None:
        """Let waiting settlements be written, or leave them in the spool."""
        try:
            async with asyncio.timeout(deadline_s):
                while len(self._settlements) or self._spool.waiting:  # noqa: ASYNC110  (two sources, one short wait)
                    await asyncio.sleep(APART_S)
        except TimeoutError:
            log.warning("settlements_left_in_spool", waiting=self._spool.waiting)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def rejoin(self, worker_id: int) -> None:
        """Claim under another name from now on; what is held keeps its fences and will be refused by them."""
        self._worker_id = worker_id

    async def claim(self, sample_id: int, account: str) -> Claim | NoRoom | None:
        """The sample; NO_ROOM; or None when it is done, running elsewhere, not due, or its dataset closed.

        Waits while the database is away. A claim whose waiter was cancelled is given back by `give_back_strays`.
        """
        if sample_id in self.held:
            return None
        return await self._claims.put((sample_id, account))

    async def settle(self, settlement: Settlement) -> bool:
        """False when the fence refused it. Returns once written, or once safe in the spool of a stopping worker."""
        try:
            return await self._settlements.put(settlement)
        finally:
            self.held.pop(settlement.id, None)

    async def _claim(self, wanted: list[tuple[int, str]]) -> list[Claim | NoRoom | None]:
        taken, refused = await self._patiently(
            lambda: perform(self._engine, claims.claim_or_refuse, wanted, self._worker_id, self._lane))
        for claim in taken.values():
            self.held[claim.id] = claim.fence
        return [NO_ROOM if sample_id in refused else taken.pop(sample_id, None) for sample_id, _ in wanted]

    def _unclaimed(self, claim: Claim | NoRoom | None) -> None:
        if isinstance(claim, Claim):
            self.held.pop(claim.id, None)   # a stray now: `give_back_strays` releases it

    async def _settle(self, batch: list[Settlement]) -> list[bool]:
        try:
            owned = await self._patiently(lambda: perform(self._engine, settlements.settle, batch), spooled=batch)
        except StoreError:
            return await self._one_by_one(batch)
        self._spool.settled(batch)
        self.fenced += len(batch) - len(owned)
        return [s.id in owned for s in batch]

    async def _one_by_one(self, batch: list[Settlement]) -> list[bool]:
        """A batch the database refused: halve it until the bad row is alone; that one is kept aside and ended."""
        if len(batch) > 1:
            middle = len(batch) // 2
            return [*await self._settle(batch[:middle]), *await self._settle(batch[middle:])]
        bad = batch[0]
        self._spool.quarantine(bad)
        log.error("answer_refused_by_store", sample=bad.id)
        if bad.code == REFUSED:
            return [False]
        return await self._settle([replace(
            bad, event=Event.DROP, code=REFUSED, stored=None, next_turn=None, provider="", model="", quantization="",
            generation_id="", ignore=None)])

    async def _patiently(self, call: Callable[[], Awaitable[Out]], spooled: Sequence[Settlement] = ()) -> Out:
        """Repeat while the database is away; what is to be settled is safe on disk meanwhile."""
        pause = BACK_OFF_S[0]
        while True:
            try:
                result = await call()
                self.away = False
                return result
            except StoreAway as error:
                if not self.away:
                    log.warning("database_away", cause=str(error))
                self.away = True
                if spooled:
                    await self._spool.keep(spooled)
                await asyncio.sleep(pause)
                pause = min(2 * pause, BACK_OFF_S[1])

    async def give_back_strays(self) -> int:
        """Release samples that the database counts as ours but nobody here holds: a claim whose reply or waiter was lost."""
        mine = await perform(self._engine, sweeps.held_by, self._worker_id)
        strays = [Settlement(i, fence, Event.RELEASE, "stray_claim") for i, fence in mine if self.held.get(i) != fence]
        if strays:
            await perform(self._engine, settlements.settle, strays)
        return len(strays)


REFUSED = "refused_by_store"
