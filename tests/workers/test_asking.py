"""What a plan and an account's past make of one call: how long it may take, how often it is made, what came before it."""

import json
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
from workers.asking import FIRST_EVENT_S, Endpoint, Recent, Work, prepared
from workers.generate import _judged
from workers.providers.base import Exchange, Fault, Limits
from workers.providers.listing import Listed
from workers.verdict import Action

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
    verdict = _judged(work, Exchange(fault=Fault.DEADLINE))
    assert verdict.code == "timeout"
    assert verdict.action is (Action.DROP if ends else Action.RETRY)


@pytest.mark.parametrize(("kind", "again"), [("openrouter", "duplicate_generation_id"), ("vllm", "ok")])
async def test_a_routers_generation_that_answers_a_second_prompt_came_out_of_a_cache(kind: Any, again: str) -> None:
    endpoint: Any = Endpoint("home", Account(kind=kind), Provider(False), SimpleNamespace())   # type: ignore[arg-type]
    work = await prepared(Rebuilder(), dataset(), endpoint, CLAIM)  # type: ignore[arg-type]
    assert [told(work, name) for name in ("gen-1", "gen-2", "gen-1")] == ["ok", "ok", again]


def told(work: Work, name: str) -> str:
    choice = {"index": 0, "finish_reason": "stop", "message": {"content": "because"}}
    reply = {"id": name, "model": "a/model", "choices": [choice],
             "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11, "cost": 0.1}}
    return _judged(work, Exchange(200, {"content-type": "application/json"}, json.dumps(reply).encode())).code


def test_only_the_newest_names_are_remembered() -> None:
    recent = Recent(2)
    for name in ("a", "b", "c"):
        recent.add(name)
    assert [name in recent for name in ("a", "b", "c")] == [False, True, True]
