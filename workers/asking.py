"""From a claim to a call: what is asked of whom, with which settings, for how long, and how a call is ended early."""

import asyncio
from dataclasses import dataclass, field, replace
from typing import Any

from models import blob
from models.blob import Ids
from models.plan import Account
from models.sampling import drawn
from models.states import Lane
from models.store.claims import Claim
from models.store.datasets import Dataset
from workers.limiter import Limiter
from workers.providers import listing
from workers.providers.base import Ask, Exchange, Limits, Provider
from workers.providers.listing import Listed
from workers.rebuild import Rebuilder

# The total deadline of a call: max_tokens at the slowest believable speed, and a while on top. 22 and 35 minutes in the
# usual lanes; one's own engine queues instead of refusing, and asking it again only lengthens the queue.
SLOWEST_TOKENS_PER_S, PATIENCE_S = 8.0, 60.0
OWN_SLOWEST_TOKENS_PER_S, OWN_PATIENCE_S = 2.0, 300.0
FIRST_EVENT_S = 300.0      # of a hosted stream, which else might wait behind comments until its deadline
HANG_UP_S = 2.0


class Recent:
    """The newest names, a bounded number of them."""

    def __init__(self, most: int = 50_000) -> None:
        self._most = most
        self._names: dict[str, None] = {}

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def add(self, name: str) -> None:
        if len(self._names) >= self._most:
            del self._names[next(iter(self._names))]
        self._names[name] = None


@dataclass(slots=True)
class Endpoint:
    """An account as this worker uses it. answered: generations of its answers; one that comes again came out of a cache."""

    name: str
    account: Account
    provider: Provider
    limiter: Limiter
    answered: Recent = field(default_factory=Recent)


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """A claimed sample and its call. hosts: of its model, as listed. cancels: when its stream is left, its bill ends too."""

    dataset: Dataset
    endpoint: Endpoint
    claim: Claim
    prompt: dict[str, Any]
    ask: Ask
    hosts: tuple[Listed, ...] = ()
    cancels: bool = False


async def prepared(rebuilder: Rebuilder, dataset: Dataset, endpoint: Endpoint, claim: Claim) -> Work:
    """The call as the plan, the sample's key and what is known of the hosts have it. DraftmillError: the prompt is unusable."""
    prompt = blob.unpack_json(claim.prompt)
    plan = dataset.plan
    lane = Lane(claim.lane)
    sampling = drawn(plan.sampling, claim.key)
    effort = sampling.pop("reasoning_effort", None)
    prompt_ids = await rebuilder.prompt_ids(plan, claim.id, prompt, len(claim.prompt))
    prefix = _prefix(claim, endpoint)
    ignore = (*(claim.ignore or ()), *dataset.excluded)
    hosts = await endpoint.provider.hosts(plan.model)
    cancels = endpoint.provider.cancels(listing.admitted(hosts, plan, ignore))
    chosen = plan.lane(lane.label)
    streams = lane is Lane.LONG and cancels if chosen.stream is None else chosen.stream
    ask = Ask(
        model=plan.model, messages=prompt["messages"], tools=prompt.get("tools"),
        max_tokens=claim.max_tokens - (0 if prefix is None else len(prefix)),
        sampling=sampling, routing=plan.routing.body(),
        reasoning={**(plan.reasoning or {}), **({"effort": effort} if effort else {})} or None,
        thinking=plan.thinking, thinking_key=rebuilder.thinking_key(plan), ignore=ignore,
        stream=streams, limits=_limits(chosen.deadline_s or _deadline_s(claim.max_tokens, endpoint), endpoint, streams),
        prompt_ids=prompt_ids, prefix_ids=prefix, expected_prompt_tokens=None if prompt_ids is None else len(prompt_ids))
    return Work(dataset, endpoint, claim, prompt, ask, hosts, streams and cancels)


def _limits(total_s: float, endpoint: Endpoint, streams: bool) -> Limits:
    return Limits(total_s=total_s, first_byte_s=FIRST_EVENT_S if streams and endpoint.account.kind == "openrouter" else 0.0)


def _deadline_s(max_tokens: int, endpoint: Endpoint) -> float:
    if endpoint.account.kind == "openrouter":
        return max_tokens / SLOWEST_TOKENS_PER_S + PATIENCE_S
    return max_tokens / OWN_SLOWEST_TOKENS_PER_S + OWN_PATIENCE_S


def _prefix(claim: Claim, endpoint: Endpoint) -> Ids | None:
    """The ids a promoted sample goes on from: an engine's own, where the endpoint takes ids and they leave room."""
    if claim.prefix_ids is None or endpoint.account.kind == "openrouter":
        return None
    ids = blob.unpack_ids(claim.prefix_ids)
    return ids if 0 < len(ids) < claim.max_tokens else None


async def asked(work: Work) -> Exchange:
    """What came back; `Stopped` with it where this process is told to stop meanwhile."""
    call = asyncio.create_task(work.endpoint.provider.ask(work.ask))
    try:
        return _served(work, await asyncio.shield(call))
    except asyncio.CancelledError:
        raise Stopped(await _ended(work, call)) from None


class Stopped(Exception):
    """The call was ended by our own stop. `exchange`: what it had until then; None where nothing was asked."""

    def __init__(self, exchange: Exchange | None) -> None:
        super().__init__()
        self.exchange = exchange


async def _ended(work: Work, call: "asyncio.Task[Exchange]") -> Exchange | None:
    """Hung up rather than cancelled: so what had come is kept, the name of the generation first."""
    if work.endpoint.provider.stop(lambda ask: ask is work.ask):
        await asyncio.wait([call], timeout=HANG_UP_S)
    if not call.done():
        call.cancel()
        await asyncio.wait([call])
    return None if call.cancelled() or call.exception() else _served(work, call.result())


def _served(work: Work, exchange: Exchange) -> Exchange:
    """With the precision at which its host serves, which no reply says and the listing does."""
    if exchange.answer is not None and work.hosts:
        quantization = listing.served(work.hosts, exchange.answer.provider, work.dataset.plan)
        exchange.answer = replace(exchange.answer, quantization=quantization)
    return exchange


def hang_up(works: "list[Work]") -> int:
    """End the streams among these calls whose hosts stop billing then; the others' answers are paid for and may come."""
    ended = 0
    for provider in {id(w.endpoint.provider): w.endpoint.provider for w in works}.values():
        unwanted = {id(w.ask) for w in works if w.cancels and w.endpoint.provider is provider}
        ended += provider.stop(lambda ask, unwanted=unwanted: id(ask) in unwanted) if unwanted else 0   # type: ignore[misc]
    return ended
