"""From a claim to a call: how long it may take, and how often a plan lets a sample be asked."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from models import blob
from models.plan import Account, DatasetPlan, LanePlan
from models.states import DatasetState, Lane
from models.store.claims import Claim
from models.store.datasets import Dataset
from workers.asking import FIRST_EVENT_S, Endpoint, prepared
from workers.generate import _history
from workers.providers.base import Exchange, Fault, Limits
from workers.providers.listing import Listed
from workers.verdict import Action, judge

PLAN = DatasetPlan(profile="smollm2", model="a/model", account="home", short=LanePlan(max_tokens=800, concurrency=1),
                   long=LanePlan(max_tokens=1_600, concurrency=1))
CLAIM = Claim(id=1, fence=1, dataset_id=1, lane=Lane.LONG, key="k", primary_id="k", turn=0, max_tokens=1_600, burnt=0,
              possibly_paid=0, ignore=None, prefix_ids=None,
              prompt=blob.pack_json({"messages": [{"role": "user", "content": "why?"}]}))


class Rebuilder:
    async def prompt_ids(self, *_: object) -> None:
        return None

    def thinking_key(self, _: object) -> str:
        return "enable_thinking"


class Provider:
    """An account whose hosts can all be left, or cannot."""

    def __init__(self, cancels: bool) -> None:
        self._cancels = cancels

    async def hosts(self, model: str) -> tuple[Listed, ...]:
        return ()

    def cancels(self, hosts: Sequence[Listed]) -> bool:
        return self._cancels


def dataset(**changes: Any) -> Dataset:
    return Dataset(1, "B1", DatasetState.OPEN, None, PLAN.model_copy(update=changes), {}, "f")


async def limits(kind: str, *, cancels: bool, of: Dataset | None = None, lane: Lane = Lane.LONG) -> Limits:
    endpoint: Any = Endpoint("home", Account(kind=kind), Provider(cancels), SimpleNamespace())   # type: ignore[arg-type]
    work = await prepared(Rebuilder(), of or dataset(), endpoint, replace(CLAIM, lane=lane))  # type: ignore[arg-type]
    return work.ask.limits


async def test_a_call_may_take_what_its_maximum_takes_at_the_slowest_speed_and_an_engine_queues_longer() -> None:
    assert (await limits("openrouter", cancels=False)).total_s == 1_600 / 8 + 60
    assert (await limits("vllm", cancels=False)).total_s == 1_600 / 2 + 300
    told = dataset(long=LanePlan(max_tokens=1_600, concurrency=1, deadline_s=7))
    assert (await limits("openrouter", cancels=False, of=told)).total_s == 7


async def test_only_a_hosted_stream_must_say_something_soon() -> None:
    assert (await limits("openrouter", cancels=True)).first_byte_s == FIRST_EVENT_S
    assert (await limits("openrouter", cancels=False)).first_byte_s == 0      # a plain reply comes all at its end
    assert (await limits("openrouter", cancels=True, lane=Lane.SHORT)).first_byte_s == 0
    assert (await limits("vllm", cancels=True)).first_byte_s == 0             # it may queue


@pytest.mark.parametrize(("plan", "burnt", "paid", "ends"), [
    ({}, 3, 0, True), ({}, 2, 0, False), ({}, 1, 1, True), ({}, 1, 0, False),
    ({"max_attempts": 1}, 0, 0, True), ({"max_attempts": 9, "max_possibly_paid": 3}, 7, 1, False),
    ({"max_attempts": 9, "max_possibly_paid": 3}, 2, 2, True)])
async def test_a_plan_says_how_often_a_lost_reply_is_asked_for(plan: dict[str, Any], burnt: int, paid: int, ends: bool) -> None:
    endpoint: Any = Endpoint("home", Account(), Provider(False), SimpleNamespace())   # type: ignore[arg-type]
    claim = replace(CLAIM, burnt=burnt, possibly_paid=paid)
    work = await prepared(Rebuilder(), dataset(**plan), endpoint, claim)  # type: ignore[arg-type]
    verdict = judge(work.ask, Exchange(fault=Fault.DEADLINE), _history(claim, work.dataset))
    assert verdict.code == "timeout"
    assert verdict.action is (Action.DROP if ends else Action.RETRY)
