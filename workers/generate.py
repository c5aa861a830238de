"""The story of one sample, as a worker lives it.

    hint -> a slot of the account -> claim -> the provider is asked -> verdict -> ids and grade -> settle

Nothing is asked without a committed claim, and whatever was asked is settled: also when this process is told to stop.
"""

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from time import monotonic
from typing import Any, Protocol

import structlog

from models import tracing
from models.errors import DraftmillError
from models.names import cleaned
from models.states import DatasetState, Event, Lane
from models.store.claims import Claim
from models.store.datasets import NUSD, Dataset
from models.store.settlements import Settlement
from workers.asking import Endpoint, Stopped, Work, asked, prepared
from workers.ledger import Ledger
from workers.limiter import Outcome
from workers.providers.base import Exchange
from workers.rebuild import Rebuilder
from workers.verdict import Action, Billed, History, Scope, Verdict, judge

log = structlog.get_logger()
SLOT_WAIT_S = 120.0            # then the hint ends; the reaper sends another
PROBE_EVERY_S = 20.0
ROOM_WAIT_S, ROOM_PAUSE_S = 30.0, (0.2, 0.6)
WAITERS = 16                   # hints per dataset and worker that wait for room in its budget
NO_ROOM_NOW, NO_SLOT, STOPPED = "no_room", "no_slot", "shutdown"
ANSWERED = {"provider_bad_request", "empty_completion", "no_choices", "no_message", "bad_schema"}   # by somebody who is there


class Mill(Protocol):
    """What the story needs of the process it runs in."""

    ledger: Ledger
    rebuilder: Rebuilder
    waiting: "Waiting"
    places: asyncio.Semaphore   # calls in flight
    calls: dict[int, Work]      # by sample

    def dataset(self, name: str) -> Dataset | None: ...
    async def endpoint(self, dataset: Dataset, sample_id: int) -> Endpoint: ...
    def crowded(self, endpoint: Endpoint) -> bool: ...
    async def close(self, dataset: Dataset, reason: str) -> None: ...


async def generate(mill: Mill, sample_id: int, dataset_name: str) -> str:
    """The code of what became of the sample, for the log: `ok`, `not_claimed`, `http_500`, ..."""
    with tracing.sample_span("sample", dataset_name, sample_id) as traced:
        code = await _generate(mill, sample_id, dataset_name)
        traced.say(code=code)
    return code


async def _generate(mill: Mill, sample_id: int, dataset_name: str) -> str:
    code = await _once(mill, sample_id, dataset_name)
    if code == NO_ROOM_NOW and mill.waiting.enter(dataset_name, sample_id):
        try:
            deadline = monotonic() + ROOM_WAIT_S
            while code == NO_ROOM_NOW and monotonic() < deadline:
                await asyncio.sleep(random.uniform(*ROOM_PAUSE_S))
                code = await _once(mill, sample_id, dataset_name)
        finally:
            mill.waiting.leave(dataset_name, sample_id)
    return code


class Waiting:
    """The few samples that wait for room in their dataset's budget, so that room given back is used at once.

    Bounded per dataset, since a waiting hint holds a slot of the pool that another dataset could use.
    """

    def __init__(self, most: int = WAITERS) -> None:
        self._most = most
        self._ids: defaultdict[str, set[int]] = defaultdict(set)

    def enter(self, dataset: str, sample_id: int) -> bool:
        ids = self._ids[dataset]
        if len(ids) >= self._most or sample_id in ids:
            return False
        ids.add(sample_id)
        return True

    def leave(self, dataset: str, sample_id: int) -> None:
        self._ids[dataset].discard(sample_id)


async def _once(mill: Mill, sample_id: int, dataset_name: str) -> str:
    async with _place(mill.places) as free:
        called = await _claimed(mill, sample_id, dataset_name) if free else NO_SLOT
    if isinstance(called, str):
        return called
    work, exchange, verdict = called
    await _through(_finish(mill, work, exchange, verdict))
    return verdict.code


@asynccontextmanager
async def _place(places: asyncio.Semaphore) -> AsyncIterator[bool]:
    """One of the process's calls in flight; False when none ended in time."""
    try:
        async with asyncio.timeout(SLOT_WAIT_S):
            await places.acquire()
    except TimeoutError:
        yield False
        return
    try:
        yield True
    finally:
        places.release()


async def _claimed(mill: Mill, sample_id: int, dataset_name: str) -> "str | tuple[Work, Exchange, Verdict]":
    """The call and what it means, or the code of why there was none."""
    dataset = mill.dataset(dataset_name)
    if dataset is None or dataset.state is DatasetState.CLOSED:
        return "closed"
    endpoint = await mill.endpoint(dataset, sample_id)
    if mill.crowded(endpoint) or not await endpoint.limiter.acquire(SLOT_WAIT_S):
        return NO_SLOT
    outcome = Outcome.NONE
    try:
        claim = await mill.ledger.claim(sample_id, endpoint.name)
        if not isinstance(claim, Claim):
            return "not_claimed" if claim is None else NO_ROOM_NOW
        try:
            exchange, work = await _called(mill, dataset, endpoint, claim)
        except Exception as error:  # noqa: BLE001  (the outermost loop of a sample: whatever failed, its claim must end)
            return await _failed(mill, dataset, claim, error)
        verdict = _judged(work, exchange)
        outcome = _outcome(verdict)
        return work, exchange, verdict
    finally:
        endpoint.limiter.release(outcome)


async def _failed(mill: Mill, dataset: Dataset, claim: Claim, error: Exception) -> str:
    """Nothing was asked. A prompt that its model's template refuses is its own fault; anything else is ours and is retried."""
    own = isinstance(error, DraftmillError)
    last = claim.burnt + 1 >= dataset.plan.max_attempts
    code = "prompt_unusable" if own else "internal_error"
    log.error("sample_failed", sample=claim.id, code=code, error=type(error).__name__, cause=str(error) if own else "")
    await mill.ledger.settle(Settlement(claim.id, claim.fence, Event.DROP if own or last else Event.RETRY, code, wait_s=5.0,
                                        burns=True))
    return code


async def _through(ending: Any) -> None:
    """A paid answer is written even when the process is told to stop meanwhile."""
    task = asyncio.ensure_future(ending)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


async def _called(mill: Mill, dataset: Dataset, endpoint: Endpoint, claim: Claim) -> tuple[Exchange, Work]:
    """The call of a claim. Where this process is told to stop, what the call had until then is settled before it does."""
    work = None
    try:
        work = mill.calls[claim.id] = await prepared(mill.rebuilder, dataset, endpoint, claim)
        with tracing.span("call", account=endpoint.name, model=work.ask.model, fence=claim.fence) as traced:
            exchange = await asked(work)
            traced.say(status=exchange.status, elapsed_s=exchange.elapsed_s)
        return exchange, work
    except asyncio.CancelledError:
        await asyncio.shield(mill.ledger.settle(Settlement(claim.id, claim.fence, Event.RELEASE, STOPPED)))
        raise
    except Stopped as stopped:
        assert work is not None
        await asyncio.shield(_stopped(mill, work, stopped.exchange))
        raise asyncio.CancelledError from None
    finally:
        mill.calls.pop(claim.id, None)


async def _stopped(mill: Mill, work: Work, exchange: Exchange | None) -> None:
    """A call that our own stop cut short burns no attempt; what it may have cost is booked. One that had its answer is done."""
    claim = work.claim
    if exchange is None:
        await mill.ledger.settle(Settlement(claim.id, claim.fence, Event.RELEASE, STOPPED))
        return
    verdict = _judged(work, exchange)
    if verdict.code != "cancelled":
        await _finish(mill, work, exchange, verdict)
        return
    released = replace(_settlement(work, exchange, verdict, None, None), event=Event.RELEASE, code=STOPPED)
    await mill.ledger.settle(released)


def _judged(work: Work, exchange: Exchange) -> Verdict:
    """Engines number their replies as they like; only a router's names mean anything across samples."""
    hosted, answered = work.endpoint.account.kind == "openrouter", work.endpoint.answered
    history = _history(work.claim, work.dataset)
    verdict = judge(work.ask, exchange, replace(history, seen=answered) if hosted else history)
    if hosted and verdict.answer is not None and verdict.answer.generation_id:
        answered.add(verdict.answer.generation_id)
    return verdict


def _history(claim: Claim, dataset: Dataset) -> History:
    return History(burnt=claim.burnt, possibly_paid=claim.possibly_paid, max_burnt=dataset.plan.max_attempts,
                   max_possibly_paid=dataset.plan.max_possibly_paid, lane=Lane(claim.lane).label,
                   may_promote=dataset.plan.promote and claim.lane == Lane.SHORT and _grows(claim, dataset),
                   snoozed=max(0, claim.fence - 1 - claim.burnt), expected_tokens=dataset.mean_tokens)


def _grows(claim: Claim, dataset: Dataset) -> bool:
    """Whether the long lane would let this sample say more; one with a maximum of its own has that there too."""
    return claim.max_tokens == dataset.plan.short.max_tokens < dataset.plan.long.max_tokens


def _outcome(verdict: Verdict) -> Outcome:
    """What the account's limit learns: a host that broke or vanished is no sign of too much at once."""
    if verdict.halts or verdict.code in ("cancelled", "local_pool"):
        return Outcome.NONE
    if verdict.action is Action.SNOOZE:
        return Outcome.BROKEN if verdict.code in ("provider_error", "dns_failed") else Outcome.REFUSED
    if verdict.action is Action.RETRY and verdict.code not in ANSWERED and not verdict.billed.completion_tokens:
        return Outcome.BROKEN
    return Outcome.OK


async def _finish(mill: Mill, work: Work, exchange: Exchange, verdict: Verdict) -> None:
    stored = next_turn = None
    if verdict.answer is not None and verdict.action in (Action.DONE, Action.PROMOTE):
        try:
            stored, next_turn = await mill.rebuilder.stored(work, exchange, verdict)
        except Exception as error:  # noqa: BLE001  (the answer is paid for: its cost must be booked and its claim must end)
            log.error("row_failed", sample=work.claim.id, error=type(error).__name__)
            verdict = replace(verdict, action=Action.DROP, code="internal_error")
    await mill.ledger.settle(_settlement(work, exchange, verdict, stored, next_turn))
    if verdict.halts and verdict.scope is Scope.DATASET:
        await mill.close(work.dataset, verdict.code)
    elif verdict.halts and verdict.scope is Scope.ACCOUNT:
        await work.endpoint.limiter.pause(verdict.code, PROBE_EVERY_S)


def _settlement(work: Work, exchange: Exchange, verdict: Verdict, stored: Any, next_turn: Any) -> Settlement:
    billed, answer, problem = verdict.billed, verdict.answer or exchange.answer, exchange.problem
    return Settlement(
        id=work.claim.id, fence=work.claim.fence, event=Event(verdict.action.value), code=verdict.code,
        wait_s=random.uniform(*verdict.wait_s), burns=verdict.burns, possibly_paid=verdict.possibly_paid,
        ignore=verdict.ignore_provider or None, basis=billed.basis, prompt_tokens=billed.prompt_tokens,
        completion_tokens=billed.completion_tokens, cost_nusd=round(_cost_usd(work, billed) * NUSD),
        provider=(answer.provider if answer else "") or (problem.provider if problem else ""),
        quantization=answer.quantization if answer else "", model=answer.model if answer else "",
        generation_id=(answer.generation_id if answer else "") or cleaned(exchange.headers.get("x-generation-id", "")),
        status=exchange.status, latency_ms=round(exchange.elapsed_s * 1000), stored=stored, next_turn=next_turn,
        has_bill=work.endpoint.account.kind == "openrouter")


def _cost_usd(work: Work, billed: Billed) -> float:
    """As the reply says; what a hosted account does not say is priced. One's own engine costs nothing a call."""
    if billed.cost_known or billed.basis == "none" or work.endpoint.account.kind != "openrouter":
        return billed.cost_usd
    return work.dataset.priced(billed.prompt_tokens, billed.completion_tokens)
