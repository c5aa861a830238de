"""Claims and settlements, batched across the coroutines of a worker (group commit).

One flush is under way per verb; while it runs the next batch collects. That halves PostgreSQL's CPU against a flush per
20 ms and keeps 2,500 requests in flight on a handful of connections. While the database is away claims wait, so no new
call starts, and settlements wait in the spool.
"""

import asyncio
import contextvars
import os
import signal
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from models.base import perform
from models.errors import RowRefused, StoreError
from models.states import Event, Lane
from models.store import claims, settlements, sweeps
from models.store.claims import Claim
from models.store.settlements import Settlement
from workers.spool import Spool, orphaned

log = structlog.get_logger()
In = TypeVar("In")
Out = TypeVar("Out")
MOST = 100          # rows a statement: the gain is flat from here on
APART_S = 0.05
BACK_OFF_S = (0.2, 5.0)


class Batcher(Generic[In, Out]):
    """Collects what coroutines put in and hands it to `flush` in batches, one at a time.

    unwanted: is told a result whose waiter was cancelled, and what nobody waits for any more is left out. Without it
    all is served, whatever became of the waiter.
    """

    def __init__(self, flush: Callable[[list[In]], Awaitable[list[Out]]], unwanted: Callable[[Out], None] | None = None) -> None:
        self._flush, self._unwanted = flush, unwanted
        self._waiting: deque[tuple[In, asyncio.Future[Out]]] = deque()
        self._serving: list[tuple[In, asyncio.Future[Out]]] = []
        self._wake = asyncio.Event()

    def outstanding(self) -> list[In]:
        """What was put in and is not served yet."""
        return [item for item, _ in (*self._serving, *self._waiting)]

    def add(self, item: In) -> "asyncio.Future[Out]":
        future: asyncio.Future[Out] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, future))
        self._wake.set()
        return future

    async def put(self, item: In) -> Out:
        future = self.add(item)
        try:
            return await future
        except asyncio.CancelledError:
            if self._unwanted and not future.cancelled() and future.exception() is None:
                self._unwanted(future.result())     # answered, and cancelled before it could be told
            raise

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            if len(self._waiting) < MOST:
                await asyncio.sleep(APART_S)
            self._serving = [self._waiting.popleft() for _ in range(min(MOST, len(self._waiting)))]
            if not self._waiting:
                self._wake.clear()
            if self._unwanted:
                self._serving = [entry for entry in self._serving if not entry[1].cancelled()]
            if self._serving:
                await self._serve(self._serving)
            self._serving = []

    async def _serve(self, batch: list[tuple[In, "asyncio.Future[Out]"]]) -> None:
        try:
            results = await self._flush([item for item, _ in batch])
        except StoreError as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), result in zip(batch, results, strict=True):
            if not future.done():
                future.set_result(result)
            elif self._unwanted:
                self._unwanted(result)


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
        self._asked: set[int] = set()       # samples whose claim is under way
        self.held: dict[int, int] = {}
        self.away = False
        self.fenced = 0            # settlements refused by their fence

    def start(self) -> None:
        # With an empty context: a flush belongs to no sample.
        for batcher in (self._claims, self._settlements):
            task = asyncio.get_running_loop().create_task(batcher.run(), context=contextvars.Context())
            task.add_done_callback(_ended)
            self._tasks.append(task)

    async def stop(self, deadline_s: float = 10.0) -> None:
        """Let waiting settlements be written, or leave them in the spool."""
        try:
            async with asyncio.timeout(deadline_s):
                while self._settlements.outstanding():  # noqa: ASYNC110  (a short wait, at the end of a life)
                    await asyncio.sleep(APART_S)
        except TimeoutError:
            await self._spool.keep(self._settlements.outstanding())
            log.warning("settlements_left_in_spool", waiting=self._spool.waiting)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def replay(self, folder: Path) -> int:
        """Settle what the spools of dead workers hold and remove them; how many. One bad record does not keep the others."""
        replayed = 0
        for path, waiting in orphaned(folder):
            await asyncio.gather(*(self.settle(settlement) for settlement in waiting))
            path.unlink(missing_ok=True)
            replayed += len(waiting)
        return replayed

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
        """False when the fence refused it. Returns once written, also where the caller no longer waits for it.

        While the database is away it is safe in the spool at once: it may stay away longer than this process lives.
        """
        written = self._settlements.add(settlement)
        if self.away:
            await self._spool.keep([settlement])
        return await written

    async def _claim(self, wanted: list[tuple[int, str]]) -> list[Claim | NoRoom | None]:
        self._asked = {sample_id for sample_id, _ in wanted}
        taken, refused = await self._patiently(
            lambda: perform(self._engine, claims.claim_or_refuse, wanted, self._worker_id, self._lane))
        self.held.update((claim.id, claim.fence) for claim in taken.values())
        self._asked = set()
        return [NO_ROOM if sample_id in refused else taken.pop(sample_id, None) for sample_id, _ in wanted]

    def _unclaimed(self, claim: Claim | NoRoom | None) -> None:
        if isinstance(claim, Claim):
            self.held.pop(claim.id, None)   # a stray now: `give_back_strays` releases it

    async def _settle(self, batch: list[Settlement]) -> list[bool]:
        try:
            owned = await self._patiently(lambda: perform(self._engine, settlements.settle, batch), self._settlements.outstanding)
        except RowRefused:
            return await self._one_by_one(batch)
        self._spool.settled(batch)
        for settlement in batch:
            self._let_go(settlement)
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
            return [False]      # in hand for as long as this worker lives: better than to ask and pay again
        return await self._settle([_stripped(bad)])

    def _let_go(self, settlement: Settlement) -> None:
        if self.held.get(settlement.id) == settlement.fence:
            del self.held[settlement.id]

    async def _patiently(self, call: Callable[[], Awaitable[Out]], paid: Callable[[], Sequence[Settlement]] = tuple) -> Out:
        """Repeat while the database is away or not itself; what was paid for is safe on disk meanwhile."""
        pause = BACK_OFF_S[0]
        while True:
            try:
                result = await call()
                self.away = False
                return result
            except RowRefused:
                raise
            except StoreError as error:
                if not self.away:
                    log.warning("database_away", cause=str(error))
                self.away = True
                await self._spool.keep(paid())
                await asyncio.sleep(pause)
                pause = min(2 * pause, BACK_OFF_S[1])

    async def give_back_strays(self) -> int:
        """Release samples that the database counts as ours but nobody here holds: a claim whose reply or waiter was lost."""
        before = dict(self.held)        # what is settled meanwhile is no stray, nor what is committed and not told here yet
        mine = await perform(self._engine, sweeps.held_by, self._worker_id)
        strays = [Settlement(i, fence, Event.RELEASE, "stray_claim") for i, fence in mine
                  if fence not in (before.get(i), self.held.get(i)) and i not in self._asked]
        if strays:
            await perform(self._engine, settlements.settle, strays)
        return len(strays)


REFUSED = "refused_by_store"
MOST_COUNTED, MOST_NUSD = 10**9, 10**15      # two counts are summed as int4; a million dollars


def _stripped(bad: Settlement) -> Settlement:
    """The end of a sample whose answer no table takes: nothing is left that could be refused but what it cost."""
    return Settlement(bad.id, bad.fence, Event.DROP, REFUSED, burns=True, basis=bad.basis,
                      prompt_tokens=min(bad.prompt_tokens, MOST_COUNTED),
                      completion_tokens=min(bad.completion_tokens, MOST_COUNTED), cost_nusd=min(bad.cost_nusd, MOST_NUSD))


def _ended(task: "asyncio.Task[None]") -> None:
    """Without its ledger a worker can do nothing but end; the supervisor starts it anew."""
    if not task.cancelled() and (error := task.exception()) is not None:
        # The places alone: a message or a local variable would bring answers into the log.
        log.critical("ledger_failed", cause=type(error).__name__, where=traceback.format_tb(error.__traceback__)[-5:])
        os.kill(os.getpid(), signal.SIGTERM)
