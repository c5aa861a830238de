"""`draftmill import`: replies of former runs, judged by the table of verdicts and graded like those of workers."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import Engine

from models import blob
from models.base import transaction
from models.blob import Ids
from models.conversation import Document, Message, Next, next_turn
from models.errors import SettingsError
from models.plan import Account, DatasetPlan, Plan
from models.states import Grade, Lane
from models.store import calibrations
from models.store import datasets as store
from models.store.datasets import NUSD, Dataset
from models.store.imports import Import
from models.store.rows import spans_json
from models.store.settlements import NextTurn, Stored
from models.tokens import profile
from models.tokens.model import Model
from producer.imports import Answered, Imported, Importer, Reader
from producer.messages import Malformed
from producer.refusals import Rejects
from producer.replies import Reply, Words
from workers.providers.base import Ask, Exchange
from workers.providers.reread import reread
from workers.ruling import Action, History
from workers.verdict import judge

ACCOUNT = "import"          # names no account of any plan's: replies are kept in the shape of OpenRouter's
UNBOUNDED = 1_000_000
# A turn as templates of two families write it; what is read so must render to the same ids again.
TURNS = (re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL),
         re.compile(r"<\|im_(system|user|assistant)\|>\w*<\|im_middle\|>(.*?)<\|im_end\|>", re.DOTALL))


class Judge:
    """One dataset's: what a reply is worth."""

    def __init__(self, engine: Engine, dataset: Dataset, home: Path) -> None:
        self.dataset, self.plan = dataset, dataset.plan
        self.model = Model.open(profile.load(dataset.plan.profile, home))
        with transaction(engine) as connection:
            self.conventions = calibrations.newest(connection)

    def reader(self) -> Reader:
        return Reader(Words(self.model.end_ids, self.decode), lambda p: self.rendered(p).tolist(), self.parsed, self.judged)

    def decode(self, ids: Sequence[int]) -> str:
        return self.model.vocabulary.decode(list(ids), hidden=False).decode("utf-8", "replace")

    def rendered(self, prompt: Document) -> Ids:
        return self.model.prompt_ids(prompt["messages"], prompt["tools"], self.plan.thinking)

    def parsed(self, ids: Sequence[int]) -> list[Message] | None:
        text = self.model.decode(ids).decode("utf-8", "replace") if max(ids) < self.model.vocab_size else ""
        for pattern in TURNS:
            whole = [{"role": role, "content": content} for role, content in pattern.findall(text)]
            for messages in (whole[1:] if whole and whole[0]["role"] == "system" else [], whole):
                if messages and self.rendered({"messages": messages, "tools": None}).tolist() == list(ids):
                    return messages
        return None

    def judged(self, reply: Reply, raw: bytes, prompt: Document, primary_id: str, name: str) -> Answered:
        """As a worker would, but that a cut answer is stored as it is instead of being asked for again on the long lane."""
        plan = self.plan
        answer = reread("openrouter", raw, plan.thinking is not False)
        if answer is None:
            raise Malformed("no_answer", "the reply holds no answer")
        prompt_ids = self.rendered(prompt)
        cut = "length" in (answer.finish_reason, answer.native_finish_reason)
        # Where its maximum is not told, a cut answer ended at it, and any other below it.
        most = reply.max_tokens or (max(1, answer.usage.completion_tokens or 1) if cut else UNBOUNDED)
        ask = Ask(plan.model, prompt["messages"], most, prompt["tools"], routing=plan.routing.body(), thinking=plan.thinking,
                  expected_prompt_tokens=len(prompt_ids))
        exchange = Exchange(200, {"content-type": "application/json"}, raw, answer=answer, dialect="import")
        verdict = judge(ask, exchange, History(lane=Lane.LONG.label, may_promote=False))
        if verdict.action is not Action.DONE or verdict.answer is None:
            raise Malformed("no_answer", f"a worker would not have stored it: {verdict.code}")
        convention = self.conventions.get((plan.profile, plan.model, answer.provider, answer.finish_reason))
        row = self.model.row(answer, prompt_ids, convention=convention, truncated=verdict.truncated)
        grade = min(row.grade, reply.best)
        billed, usage = verdict.billed, answer.usage
        known = usage.completion_tokens is not None
        stored = Stored(
            grade=int(grade), version=row.version, trainable=verdict.trainable, truncated=verdict.truncated,
            finish_reason=answer.finish_reason, model=answer.model or plan.model, account=ACCOUNT,
            fingerprint=self.dataset.fingerprint, sampling=json.dumps(reply.sampling), n_prompt=len(row.prompt_ids),
            n_tokens=len(row.completion_ids), spans=spans_json(row.spans), prompt_ids=blob.pack_ids(row.prompt_ids),
            ids=blob.pack_ids(row.completion_ids), raw=blob.pack_raw(raw), candidates=min(row.candidates, 32_000), rule=row.rule,
            reason=row.reason, delta=row.delta, prompt_delta=row.prompt_delta,
            flags=",".join(sorted(verdict.flags | reply.flags)))
        follow = next_turn(primary_id, prompt, answer.content, answer.reasoning, answer.tool_calls, verdict.truncated)
        turn = None
        if isinstance(follow, Next) and plan.turns == "all":
            turn = NextTurn(follow.key, follow.document["turn"], 0, blob.pack_json(follow.document))
        made = Import(
            0, stored, "usage" if known else "none", billed.prompt_tokens * known, billed.completion_tokens * known,
            round((usage.cost_usd or 0.0) * NUSD), answer.provider, reply.quantization, answer.model, name, turn)
        return Answered(made, Grade(grade))


def import_files(engine: Engine, name: str, files: Sequence[Path], home: Path, plan: Plan | None = None) -> Imported:
    """Attach the answers of `files` to the dataset, which is made from `plan` if it is not there.

    SettingsError for a dataset that neither is there nor in the plan.
    """
    with transaction(engine) as connection:
        known = {d.name: d for d in store.every(connection)}
        if name not in known:
            if plan is None or name not in plan.datasets:
                raise SettingsError(cause=f"there is no dataset {name!r}; name a plan that has it, or its --profile and --model")
            store.put(connection, name, plan.datasets[name], plan.accounts)
            known = {d.name: d for d in store.every(connection)}
    dataset = known[name]
    with Rejects(home / "rejects" / f"{name}.import.jsonl") as rejects:
        return Importer(engine, dataset, Judge(engine, dataset, home).reader(), rejects).run(files)


def plan_of(name: str, model: str, profile_name: str) -> Plan:
    """For a dataset that no plan file describes."""
    return Plan(accounts={"openrouter": Account()},
                datasets={name: DatasetPlan(profile=profile_name, model=model, account="openrouter")})

