"""A stored prompt and how a conversation goes on from it.

The document of a sample, one JSON object:

    {"messages": [...], "tools": [...] | null, "later": [...], "metadata": {...}, "turn": n}

`messages` is the history exactly as it is sent and ends before the turn to be generated. `later` is what the recording holds
from that turn on; it is empty where only one answer is wanted. Turn n + 1 is made from what the model itself said in turn n,
with the recorded words of the other side: the user's, and a tool's result where the model made the recorded call.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from typing import Any

from models.answer import ToolCall

_ANSWER, _TURN = re.compile(r"#a(\d{1,4})$"), re.compile(r"#t\d+$")

Message = dict[str, Any]
Document = dict[str, Any]


class Reason(StrEnum):
    """Why a conversation has no further turn."""

    FINISHED = "finished"                # the recording has nothing more to answer
    TRUNCATED = "truncated"              # the answer was cut: nothing may follow it
    CALL_NOT_RECORDED = "call_not_recorded"    # a call was made for which no result is recorded
    CALL_NOT_MADE = "call_not_made"      # the recorded call was not made, so what follows answers nothing


@dataclass(frozen=True, slots=True)
class Next:
    """The sample to queue in the transaction that stores the present turn."""

    key: str
    document: Document


@dataclass(frozen=True, slots=True)
class End:
    reason: Reason


def turn_key(primary_id: str, turn: int) -> str:
    return f"{primary_id}#t{turn}"


def answer_id(primary_id: str, answer: int) -> str:
    """A prompt's n-th further answer as a conversation; the first keeps the prompt's id, so that more can be asked later.

    But for an id that looks like such a conversation's itself: two prompts would share it, and one would never be asked.
    """
    return f"{primary_id}#a{answer}" if answer or _ANSWER.search(primary_id) else primary_id


def question_of(primary_id: str) -> str:
    """What all answers to one prompt have in common."""
    return _ANSWER.sub("", primary_id)


def answer_number(key: str) -> int:
    """0 for the first answer; key: of a sample, or of its conversation."""
    found = _ANSWER.search(_TURN.sub("", key))
    return int(found[1]) if found else 0


def document(messages: list[Message], tools: list[dict[str, Any]] | None = None, later: Sequence[Message] = (),
             metadata: Mapping[str, Any] | None = None, turn: int = 0) -> Document:
    return {"messages": messages, "tools": tools, "later": list(later), "metadata": dict(metadata or {}), "turn": turn}


def assistant_message(content: str, reasoning: str | None = None, tool_calls: Sequence[ToolCall] = ()) -> Message:
    """A generated answer as history. Nothing of it is rewritten; arguments stay the model's own string."""
    message: Message = {"role": "assistant", "content": content}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if tool_calls:
        message["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in tool_calls]
    return message


def next_turn(primary_id: str, prompt: Document, content: str, reasoning: str | None = None,
              tool_calls: Sequence[ToolCall] = (), truncated: bool = False) -> Next | End:
    """What follows the answer to `prompt`: the next sample, or why there is none. Pure; never invents a tool's result."""
    if not prompt["later"]:
        return End(Reason.FINISHED)
    if truncated:
        return End(Reason.TRUNCATED)
    said = list(takewhile(_is_assistant, prompt["later"]))
    rest: list[Message] = prompt["later"][len(said):]
    heard = list(takewhile(lambda m: not _is_assistant(m), rest))
    recorded = [call for message in said for call in message.get("tool_calls") or ()]
    if recorded and not tool_calls:
        return End(Reason.CALL_NOT_MADE)
    replies = _spliced(recorded, heard, tool_calls)
    if replies is None:
        return End(Reason.CALL_NOT_RECORDED)
    if not any(m["role"] in ("user", "tool") for m in replies):
        return End(Reason.FINISHED)
    turn = prompt["turn"] + 1
    messages = [*prompt["messages"], assistant_message(content, reasoning, tool_calls), *replies]
    following = document(messages, prompt["tools"], rest[len(heard):], prompt["metadata"], turn)
    return Next(turn_key(primary_id, turn), following)


def _is_assistant(message: Message) -> bool:
    return bool(message["role"] == "assistant")


def _spliced(recorded: Sequence[dict[str, Any]], heard: list[Message], made: Sequence[ToolCall]) -> list[Message] | None:
    """The other side's messages with tool results renamed to the calls made, in the order made; None without a full match."""
    if len(recorded) != len(made):
        return None
    results = {m["tool_call_id"]: m for m in heard if m["role"] == "tool"}
    open_calls = list(recorded)
    replies: list[Message] = []
    for call in made:
        match = next((r for r in open_calls if _same_call(r["function"], call) and r["id"] in results), None)
        if match is None:
            return None
        open_calls.remove(match)
        replies.append({**results[match["id"]], "tool_call_id": call.id})
    return replies + [m for m in heard if m["role"] != "tool"]


def _same_call(recorded: Mapping[str, Any], made: ToolCall) -> bool:
    return bool(recorded["name"] == made.name) and _arguments(recorded["arguments"]) == _arguments(made.arguments)


def _arguments(text: str) -> str:
    """Arguments compared as JSON (key order and spacing aside), or as they are where they are not JSON."""
    try:
        return json.dumps(json.loads(text or "{}"), sort_keys=True)
    except (ValueError, RecursionError):
        return text
