"""From a reply's bytes to its grade, for each way in which providers send a thought, calls, log-probabilities."""

import json
from pathlib import Path
from typing import Any

import pytest

from models.states import Grade
from models.tokens import profile
from models.tokens.calibrate import Convention, Edge, Offset
from models.tokens.model import Model
from models.tokens.row import Row
from workers.providers.reread import reread

THOUGHT, CONTENT = "Greet back 🦅.\n", "\n\nHello there! 你好"
ARGUMENTS = '{"city": "Tokyo"}'
SECTION = ("<|tool_calls_section_begin|><|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>" + ARGUMENTS
           + "<|tool_call_end|><|tool_calls_section_end|>")
EDGES = ("think_lead", "think_tail", "think_cut", "content_lead", "content_tail", "content_cut", "plain_lead", "inline_lead",
         "tools_gap")
SHAPES = [f"{s}:{h}{t}" for s in ("end", "cut") for h in ("think", "open", "plain") for t in ("", "+tools")]


@pytest.fixture(scope="module")
def kimi(shared: Path) -> Model:
    return Model.open(profile.load("kimi-k2.5", tokenizers=shared / "tokenizers"))


@pytest.fixture(scope="module")
def ids(kimi: Model) -> list[int]:
    spell, added = kimi.vocabulary.spell, kimi.vocabulary.added
    return [*spell(THOUGHT), added["</think>"], *spell(CONTENT), added["<|im_end|>"]]


@pytest.fixture(scope="module")
def called(kimi: Model, ids: list[int]) -> list[int]:
    return [*ids[:-1], *kimi.vocabulary.encode(SECTION), ids[-1]]


def graded(model: Model, message: dict[str, Any], billed: int, finish: str = "stop", **choice: Any) -> Row:
    """The row of a reply from a provider that is settled to bill every token and drop nothing."""
    prompt = model.prompt_ids([{"role": "user", "content": "Hi"}])
    document = {"id": "gen-1", "provider": "P", "usage": {"prompt_tokens": len(prompt), "completion_tokens": billed},
                "choices": [{"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": CONTENT, **message},
                             **choice}]}
    answer = reread("openrouter", json.dumps(document).encode())
    assert answer is not None
    edges, offsets = {n: Edge("raw", ("",)) for n in EDGES}, {s: Offset(0, 100, 1.0, "counted") for s in SHAPES}
    return model.row(answer, prompt, convention=Convention(model.version, edges, offsets))


def details(*parts: tuple[str, str]) -> dict[str, Any]:
    field = {"reasoning.text": "text", "reasoning.summary": "summary", "reasoning.encrypted": "data"}
    return {"reasoning_details": [{"type": kind, field[kind]: value, "index": n} for n, (kind, value) in enumerate(parts)]}


@pytest.mark.parametrize("message", [
    {"reasoning": THOUGHT},
    {"reasoning_content": THOUGHT},
    {"reasoning": THOUGHT, "reasoning_content": THOUGHT, **details(("reasoning.text", THOUGHT))},
    details(("reasoning.text", THOUGHT)),
    details(("reasoning.text", THOUGHT[:5]), ("reasoning.text", THOUGHT[5:])),
    {"content": f"{THOUGHT}</think>{CONTENT}"},
    {"content": f"<think>{THOUGHT}</think>{CONTENT}"},
])
def test_a_thought_gives_the_same_ids_under_each_of_its_names(kimi: Model, ids: list[int], message: dict[str, Any]) -> None:
    row = graded(kimi, message, len(ids))
    assert (row.grade, row.completion_ids.tolist()) == (Grade.VERIFIED, ids)


@pytest.mark.parametrize("message", [
    details(("reasoning.summary", "It greets.")),
    details(("reasoning.encrypted", "gAAAAB")),
    details(("reasoning.text", THOUGHT), ("reasoning.encrypted", "gAAAAB")),
    {"reasoning": "It greets.", **details(("reasoning.summary", "It greets."))},
])
def test_a_thought_that_is_summed_up_or_sealed_cannot_be_rebuilt(kimi: Model, ids: list[int], message: dict[str, Any]) -> None:
    row = graded(kimi, message, len(ids))
    assert (row.grade, row.reason) == (Grade.REJECTED, "reasoning is hidden")


def test_a_thought_that_was_billed_and_not_sent_is_rejected_whatever_the_count(kimi: Model, ids: list[int]) -> None:
    assert graded(kimi, {"reasoning": None}, len(ids)).grade is Grade.REJECTED


def calls(call_id: str, arguments: str = ARGUMENTS) -> dict[str, Any]:
    return {"reasoning": THOUGHT, "tool_calls": [
        {"index": 0, "id": call_id, "type": "function", "function": {"name": "look", "arguments": arguments}}]}


@pytest.mark.parametrize(("message", "grade", "rule"), [
    (calls("functions.look:0"), Grade.VERIFIED, ""),
    (calls("call_9f3a"), Grade.AMBIGUOUS, "call ids rebuilt from 0"),
    (calls("chatcmpl-tool-1"), Grade.AMBIGUOUS, "call ids rebuilt from 0"),
    ({"reasoning": THOUGHT, "content": CONTENT + SECTION}, Grade.VERIFIED, ""),
])
def test_calls_are_exact_and_the_grade_says_where_that_rests_on_a_guess(
        kimi: Model, called: list[int], message: dict[str, Any], grade: Grade, rule: str) -> None:
    row = graded(kimi, message, len(called), "tool_calls")
    assert (row.grade, row.rule, row.completion_ids.tolist()) == (grade, rule, called)
    assert [s.kind for s in row.spans] == ["reasoning", "marker", "content", "tools", "stop"]


def listed(model: Model, ids: list[int]) -> dict[str, Any]:
    table = model.vocabulary.table
    return {"logprobs": {"content": [
        {"token": table[i].decode("utf-8", "replace"), "logprob": -0.1, "bytes": list(table[i])} for i in ids]}}


def test_log_probabilities_of_every_token_give_the_ids_whatever_became_of_thought_and_calls(
        kimi: Model, ids: list[int], called: list[int]) -> None:
    for message in ({"reasoning": THOUGHT}, details(("reasoning.text", THOUGHT)), {"content": f"{THOUGHT}</think>{CONTENT}"}):
        for shown in (ids, ids[:-1]):
            row = graded(kimi, message, len(ids), **listed(kimi, shown))
            assert (row.grade, row.completion_ids.tolist()) == (Grade.LOGPROBS, ids)
    for message in (calls("functions.look:0"), calls("call_9f3a"), calls("call_9f3a", '{"city":"Tokyo"}')):
        row = graded(kimi, message, len(called), "tool_calls", **listed(kimi, called))
        assert (row.grade, row.completion_ids.tolist()) == (Grade.LOGPROBS, called)


def test_log_probabilities_show_a_path_that_no_text_shows(kimi: Model, ids: list[int]) -> None:
    id_of = kimi.vocabulary.id_of
    letters = [*ids[:ids.index(163607) + 1], id_of[b"H"], id_of[b"i"], 163586]
    row = graded(kimi, {"reasoning": THOUGHT, "content": "Hi"}, len(letters), **listed(kimi, letters))
    assert (row.grade, row.completion_ids.tolist()) == (Grade.LOGPROBS, letters)


def test_log_probabilities_of_another_text_are_left_for_what_the_text_says(kimi: Model, ids: list[int]) -> None:
    close = ids.index(163607)
    decoded = listed(kimi, ids)
    for item in decoded["logprobs"]["content"]:
        item["bytes"] = list(item["token"].encode())       # a split character reads U+FFFD here
    for spoiled in (listed(kimi, ids[close + 1:]), decoded, {"logprobs": {"content": []}}, {"logprobs": None}):
        row = graded(kimi, {"reasoning": THOUGHT}, len(ids), **spoiled)
        assert (row.grade, row.completion_ids.tolist()) == (Grade.VERIFIED, ids)
