from typing import Any

import pytest

from models.answer import ToolCall
from models.conversation import (
    Document,
    End,
    Message,
    Next,
    Reason,
    answer_id,
    answer_number,
    document,
    next_turn,
    question_of,
    turn_key,
)


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def calling(*calls: tuple[str, str, str]) -> Message:
    return {"role": "assistant", "content": "", "tool_calls": [
        {"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls]}


def result(call: str, text: str) -> Message:
    return {"role": "tool", "content": text, "tool_call_id": call}


def going_on(prompt: Document, **answer: Any) -> Document:
    following = next_turn("conv", prompt, **{"content": "", **answer})
    assert isinstance(following, Next)
    return following.document


def test_the_next_turn_has_the_generated_answer_as_its_history() -> None:
    start = document([user("1")], later=[assistant("old 2"), user("3"), assistant("old 4")], metadata={"a": 1})
    following = next_turn("conv", start, "new 2", reasoning="why")
    assert following == Next("conv#t1", {
        "messages": [user("1"), {**assistant("new 2"), "reasoning_content": "why"}, user("3")],
        "tools": None, "later": [assistant("old 4")], "metadata": {"a": 1}, "turn": 1})
    assert next_turn("conv", following.document, "new 4") == End(Reason.FINISHED)
    assert start["messages"] == [user("1")]


@pytest.mark.parametrize("later", [[], [assistant("a")], [assistant("a"), {"role": "system", "content": "s"}]])
def test_a_recording_without_a_further_question_is_finished(later: list[Message]) -> None:
    assert next_turn("c", document([user("1")], later=later), "x") == End(Reason.FINISHED)


def test_nothing_follows_a_cut_answer() -> None:
    start = document([user("1")], later=[assistant("2"), user("3")])
    assert next_turn("c", start, "x", truncated=True) == End(Reason.TRUNCATED)


def test_recorded_results_follow_parallel_calls_in_the_order_and_with_the_ids_of_the_calls_made() -> None:
    start = document([user("1")], later=[
        calling(("a", "f", '{"x": 1, "y": 2}'), ("b", "g", "{}")), result("a", "A"), result("b", "B"), assistant("end")])
    made = (ToolCall("g:0", "g", ""), ToolCall("f:1", "f", '{"y":2,"x":1}'))
    following = going_on(start, tool_calls=made)
    assert following["messages"][2:] == [result("g:0", "B"), result("f:1", "A")]
    assert following["messages"][1]["tool_calls"][1]["function"]["arguments"] == '{"y":2,"x":1}'
    assert following["later"] == [assistant("end")]


def test_two_like_calls_take_two_results() -> None:
    start = document([user("1")], later=[calling(("a", "f", "{}"), ("b", "f", "{}")), result("a", "A"), result("b", "B")])
    following = going_on(start, tool_calls=(ToolCall("x", "f", "{}"), ToolCall("y", "f", "{}")))
    assert following["messages"][2:] == [result("x", "A"), result("y", "B")]


@pytest.mark.parametrize(("made", "reason"), [
    ((), Reason.CALL_NOT_MADE),
    ((ToolCall("x", "f", '{"q": 2}'),), Reason.CALL_NOT_RECORDED),
    ((ToolCall("x", "g", '{"q": 1}'),), Reason.CALL_NOT_RECORDED),
    ((ToolCall("x", "f", '{"q": 1}'), ToolCall("y", "f", '{"q": 1}')), Reason.CALL_NOT_RECORDED),
    ((ToolCall("x", "f", '{"q": 1'),), Reason.CALL_NOT_RECORDED),
])
def test_a_conversation_ends_with_a_reason_where_the_calls_differ(made: tuple[ToolCall, ...], reason: Reason) -> None:
    start = document([user("1")], later=[calling(("a", "f", '{"q": 1}')), result("a", "A"), assistant("end")])
    assert next_turn("c", start, "", tool_calls=made) == End(reason)


def test_a_call_that_the_recording_does_not_have_gets_no_made_up_result() -> None:
    start = document([user("1")], later=[assistant("2"), user("3")])
    assert next_turn("c", start, "", tool_calls=(ToolCall("x", "f", "{}"),)) == End(Reason.CALL_NOT_RECORDED)
    unanswered = document([user("1")], later=[calling(("a", "f", "{}"))])
    assert next_turn("c", unanswered, "", tool_calls=(ToolCall("x", "f", "{}"),)) == End(Reason.CALL_NOT_RECORDED)


GIVEN = ["x", "x#a1", "x#a1#a0", "x#a0", "x#a10", "#a1", "x#t3", "x#a1#t2", "x#a", "x#a12345", "x y#a2"]


def test_no_prompt_and_no_further_answer_ever_share_an_id() -> None:
    made = [answer_id(given, n) for given in GIVEN for n in range(1_000)]
    assert len(set(made)) == len(made)
    keys = [turn_key(m, 0) for m in made]
    assert not set(keys) & set(made)


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("n", [0, 1, 7])
def test_an_answers_id_tells_its_prompt_and_its_number(given: str, n: int) -> None:
    made = answer_id(given, n)
    assert question_of(made) == given
    assert (answer_number(turn_key(made, 0)), answer_number(turn_key(made, 4))) == (n, n)


def test_a_usual_prompts_first_answer_keeps_its_id() -> None:
    assert [answer_id(given, 0) for given in ("x", "x#t3", "a b")] == ["x", "x#t3", "a b"]
