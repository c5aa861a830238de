"""Ids that an engine gave: believed when the rest of the reply agrees, and never replaced."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.answer import Answer, ToolCall, Usage
from models.states import Grade
from models.tokens.model import Model
from models.tokens.verify import verify

PROMPT = np.asarray([1, 2], np.int32)


def recorded(shared: Path, name: str) -> Answer:
    """A recorded reply in the product's words; the dialects themselves are the providers' matter."""
    body = json.loads((shared / "engine" / "recorded" / f"{name}.json").read_text(encoding="utf-8"))["response"]
    choice, verbose = body["choices"][0], body.get("__verbose", {})
    message = choice["message"]
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    calls = tuple(ToolCall(c["id"], c["function"]["name"], c["function"]["arguments"]) for c in message.get("tool_calls") or ())
    return Answer(
        content=message.get("content") or "", reasoning=reasoning, reasoning_form="field" if reasoning else "none",
        tool_calls=calls, finish_reason=choice["finish_reason"],
        usage=Usage(body["usage"]["prompt_tokens"], body["usage"]["completion_tokens"]),
        completion_ids=np.asarray(choice.get("token_ids") or verbose["tokens"], np.int32), sampled_text=verbose.get("content"))


@pytest.mark.parametrize("name", [
    "llama-server-chat", "llama-server-chat-split-character", "llama-server-chat-stop", "llama-server-chat-reasoning",
    "vllm-chat", "vllm-chat-stop", "vllm-chat-reasoning", "vllm-chat-nothink", "vllm-chat-tool-call"])
def test_recorded_engine_answers_are_graded_engine(shared, tiny, name):
    given = recorded(shared, name)
    cut = given.finish_reason == "length"
    row = tiny.row(given, PROMPT, truncated=cut)
    assert (row.grade, row.reason) == (Grade.ENGINE, "")
    assert row.completion_ids.tolist() == given.completion_ids.tolist()
    assert row.spans[-1].end == len(row.completion_ids)
    assert (row.spans[-1].kind == "stop") is not cut
    assert verify(row, tiny, given, cut) == []


def engine(model: Model, text: str, ids: list[int], finish: str = "stop", billed: int | None = None) -> Answer:
    return Answer(content=text, finish_reason=finish, usage=Usage(2, len(ids) if billed is None else billed),
                  completion_ids=np.asarray(ids, np.int32))


def test_every_end_id_of_the_profile_may_end_an_answer(qwen3):
    for end in sorted(qwen3.end_ids):
        assert qwen3.row(engine(qwen3, "Yes.", [9454, 13, end]), PROMPT).grade is Grade.ENGINE
    assert len(qwen3.end_ids) == 6


@pytest.mark.parametrize(("text", "ids", "finish", "billed", "grade", "reason"), [
    ("No.", [9454, 13, 151645], "stop", None, Grade.REJECTED, "the ids decode to another text"),
    ("Yes.", [9454, 13, 151645], "stop", 4, Grade.DRIFT, "the engine gave 3 ids and billed 4"),
    ("Yes.", [9454, 13, 151645], "stop", 40, Grade.REJECTED, "the engine gave 3 ids and billed 40"),
    ("Yes.", [9454, 13], "stop", None, Grade.DRIFT, "the answer ended without an end token"),
    ("Yes.", [9454, 13, 151645], "length", None, Grade.DRIFT, "an answer that did not end has an end token"),
    ("Yes.", [9454, 13, 151936], "stop", None, Grade.REJECTED, "ids outside 0..151935"),
    ("", [], "stop", None, Grade.REJECTED, "no ids"),
])
def test_a_failed_check_is_said_and_the_ids_stay(qwen3, text, ids, finish, billed, grade, reason):
    row = qwen3.row(engine(qwen3, text, ids, finish, billed), PROMPT, truncated=finish == "length")
    assert (row.grade, row.reason, row.completion_ids.tolist()) == (grade, reason, ids)


def test_white_space_that_llama_cpp_drops_is_no_disagreement(qwen3):
    ids = [*qwen3.vocabulary.spell("  Yes."), 151645]
    assert qwen3.row(engine(qwen3, "Yes.", ids), PROMPT).grade is Grade.ENGINE


def test_the_sampled_text_is_compared_where_an_engine_gives_it(qwen3):
    ids = np.asarray([*qwen3.vocabulary.spell("  Yes."), 151645], np.int32)
    given = Answer(content="Yes.", finish_reason="stop", usage=Usage(2, len(ids)), completion_ids=ids, sampled_text=" Yes.")
    assert qwen3.row(given, PROMPT).reason == "the ids decode to another text"


def test_the_engines_prompt_ids_are_the_rows(qwen3):
    given = Answer(content="Yes.", finish_reason="stop", usage=Usage(3, 3), prompt_ids=np.asarray([7, 8, 9], np.int32),
                   completion_ids=np.asarray([9454, 13, 151645], np.int32))
    row = qwen3.row(given, PROMPT)
    assert (row.prompt_ids.tolist(), row.prompt_delta) == ([7, 8, 9], 0)


def test_verify_finds_what_was_tampered_with(qwen3):
    given = engine(qwen3, "Yes.", [9454, 13, 151645])
    row = qwen3.row(given, PROMPT)
    assert verify(row, qwen3, given) == []
    for spoiled, problem in (
        (replace(row, completion_ids=np.asarray([9454, 0, 151645], np.int32)), "the ids decode to another text"),
        (replace(row, completion_ids=np.asarray([9454, 13, 151999], np.int32)), "ids out of range"),
        (replace(row, spans=row.spans[:-1]), "spans do not cover the completion"),
        (replace(row, version="qwen3:older"), "graded with another version of the profile"),
    ):
        assert problem in verify(spoiled, qwen3, given)
    assert "the count is not the billed one" in verify(row, qwen3, replace(given, usage=Usage(2, 5)))
