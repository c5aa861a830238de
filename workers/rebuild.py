"""From a reply to a stored row: prompt ids, completion ids and their grade, off the event loop.

Everything here that could end the process runs while its sample is in `hands`.
"""

import asyncio
import gc
import json
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import structlog

from models import blob
from models.answer import Answer
from models.blob import Ids
from models.conversation import Next, next_turn
from models.plan import DatasetPlan
from models.states import Grade
from models.store.rows import spans_json
from models.store.settlements import NextTurn, Stored
from models.tokens import profile
from models.tokens.calibrate import Convention
from models.tokens.model import Model
from models.tokens.row import Row
from workers.hands import Hands
from workers.providers.base import Exchange
from workers.verdict import Verdict

if TYPE_CHECKING:
    from workers.asking import Work

SMALL = 1024    # bytes of a packed prompt: its ids take 0.1 to 0.3 ms, as long as the way to a thread and back
T = TypeVar("T")
log = structlog.get_logger()
# (profile, model, provider, finish reason) -> its convention
Conventions = Mapping[tuple[str, str, str, str], Convention]


class Rebuilder:
    """The token side of a worker. `wait_s`: how long the last job waited for a thread; add a worker when it grows."""

    def __init__(self, hands: Hands, threads: int, home: Path) -> None:
        self._hands, self._home = hands, home
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tokens")
        # A call that waits for its prompt behind finished answers leaves a slot of its account unused.
        self._prompts = ThreadPoolExecutor(1, thread_name_prefix="prompts")
        self._models: dict[str, Model] = {}
        self._opening = Lock()
        self.conventions: Conventions = {}
        self.wait_s = 0.0

    @property
    def opened(self) -> Collection[str]:
        """Profiles that are ready: only their queues are consumed from."""
        return self._models.keys()

    def close(self) -> None:
        for threads in (self._threads, self._prompts):
            threads.shutdown(wait=False, cancel_futures=True)

    def model(self, name: str) -> Model:
        """Opened once a process; ProfileError when its files or ids do not resolve."""
        with self._opening:
            if name not in self._models:
                self._models[name] = Model.open(profile.load(name, self._home))
            return self._models[name]

    async def open(self, name: str) -> None:
        await self._off_loop(0, lambda: self._opened(name))

    def _opened(self, name: str) -> None:
        """What is loaded by then stays for good: a collection that walks it all stops the event loop for 0.1 to 0.9 s."""
        self.model(name)
        gc.collect()
        gc.freeze()

    def thinking_key(self, plan: DatasetPlan) -> str:
        return self._models[plan.profile].thinking_key

    async def prompt_ids(self, plan: DatasetPlan, sample_id: int, prompt: dict[str, Any], size: int) -> Ids:
        """As the engine would see the prompt: int32[n]. size: its bytes as stored, packed."""
        def job() -> Ids:
            return self.model(plan.profile).prompt_ids(prompt["messages"], prompt.get("tools"), plan.thinking)

        if size <= SMALL and plan.profile in self._models:
            with self._hands.hold(sample_id):
                return job()
        return await self._off_loop(sample_id, job, self._prompts)

    async def stored(self, work: "Work", exchange: Exchange, verdict: Verdict) -> tuple[Stored, NextTurn | None]:
        return await self._off_loop(work.claim.id, lambda: self._stored(work, exchange, verdict))

    async def _off_loop(self, sample_id: int, job: Callable[[], T], threads: ThreadPoolExecutor | None = None) -> T:
        asked = monotonic()

        def held() -> T:
            if threads is None:
                self.wait_s = monotonic() - asked
            with self._hands.hold(sample_id):
                return job()
        return await asyncio.get_running_loop().run_in_executor(threads or self._threads, held)

    def _stored(self, work: "Work", exchange: Exchange, verdict: Verdict) -> tuple[Stored, NextTurn | None]:
        answer, plan = verdict.answer, work.dataset.plan
        assert answer is not None
        model = self.model(plan.profile)
        prompt_ids = work.ask.prompt_ids if work.ask.prompt_ids is not None else model.prompt_ids(
            work.prompt["messages"], work.prompt.get("tools"), plan.thinking)
        convention = self.conventions.get((plan.profile, plan.model, answer.provider, answer.finish_reason))
        try:
            row = graded(model, answer, prompt_ids, work.ask.prefix_ids, convention, verdict.truncated)
        except Exception as error:  # noqa: BLE001  (a paid answer is kept whatever its rebuilding does; regrade can mend it)
            log.error("rebuild_failed", sample=work.claim.id, error=type(error).__name__)
            row = Row(prompt_ids, np.empty(0, np.int32), (), Grade.REJECTED, reason="rebuild_failed", version=model.version)
        return _stored(work, exchange, verdict, answer, row), _next(work, answer, verdict)


def graded(model: Model, answer: Answer, prompt_ids: Ids, prefix_ids: Ids | None, convention: Convention | None,
           truncated: bool) -> Row:
    """The graded row. An answer that goes on from a prefix said only the rest: that is checked, then the whole is laid out."""
    if prefix_ids is None or answer.completion_ids is None:
        return model.row(answer, prompt_ids, convention=convention, truncated=truncated)
    rest = replace(answer, prompt_ids=np.concatenate([prompt_ids, prefix_ids]),
                   completion_ids=answer.completion_ids[len(prefix_ids):])
    checked = model.row(rest, prompt_ids, convention=convention, truncated=truncated)
    text = model.vocabulary.decode(answer.completion_ids.tolist(), hidden=False).decode("utf-8", "replace")
    usage = replace(answer.usage, completion_tokens=len(answer.completion_ids), prompt_tokens=len(prompt_ids))
    whole = replace(answer, prompt_ids=prompt_ids, sampled_text=text, content=text, reasoning=None, usage=usage)
    row = model.row(whole, prompt_ids, convention=convention, truncated=truncated)
    return replace(row, grade=min(row.grade, checked.grade), reason=checked.reason or row.reason)


def _stored(work: "Work", exchange: Exchange, verdict: Verdict, answer: Answer, row: Row) -> Stored:
    return Stored(
        grade=int(row.grade), version=row.version, trainable=verdict.trainable,
        truncated=verdict.truncated, finish_reason=answer.finish_reason, model=answer.model or work.ask.model,
        account=work.endpoint.name, fingerprint=work.dataset.fingerprint,
        sampling=json.dumps({**work.ask.sampling, **({"reasoning": work.ask.reasoning} if work.ask.reasoning else {})}),
        n_prompt=len(row.prompt_ids), n_tokens=len(row.completion_ids),
        spans=spans_json(row.spans),
        prompt_ids=blob.pack_ids(row.prompt_ids), ids=blob.pack_ids(row.completion_ids), raw=blob.pack_raw(exchange.body),
        candidates=min(row.candidates, 32_000), rule=row.rule, reason=row.reason, delta=row.delta,
        prompt_delta=row.prompt_delta, flags=",".join(sorted(verdict.flags)))


def _next(work: "Work", answer: Answer, verdict: Verdict) -> NextTurn | None:
    if work.dataset.plan.turns != "all" or not work.prompt.get("later"):
        return None
    following = next_turn(work.claim.primary_id, work.prompt, answer.content, answer.reasoning, answer.tool_calls,
                          verdict.truncated)
    if not isinstance(following, Next):
        return None
    return NextTurn(following.key, following.document["turn"], work.claim.lane, blob.pack_json(following.document))
