"""Chat forms, one per trainer. They are derived: the trainer renders and tokenises again, so the token form is the truth.

| dialect | row | reasoning | tool calls |
|---|---|---|---|
| messages, modelopt | id, messages | reasoning_content | OpenAI's list, arguments as text |
| specforge | id, conversations; an explicit system message | reasoning_content | one JSON string |
| speculators | id, conversations | reasoning_content | OpenAI's list |
| torchspec | id, conversations | inline think block | the model's own text, from its ids |

Cut rows are left out: every one of these would be closed by an end token that the model never sampled.
Rows are kept in folders by what columns they have (`plain`, `tools`, `calls`), since Arrow wants one schema per folder and
guesses a list that is empty for ten megabytes as a list of nothing.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.blob import Ids
from models.conversation import Message, assistant_message
from producer.rows import ExportRow
from producer.selection import Vocabulary, end_tokens

Render = Callable[[list[Message], list[dict[str, Any]] | None], Ids | None]
DIALECTS = ("messages", "modelopt", "specforge", "speculators", "torchspec")


@dataclass(frozen=True, slots=True)
class Chat:
    """group: the folder by schema. line: the row as the trainer reads it. messages, tools: as that trainer would render them."""

    group: str
    line: dict[str, Any]
    messages: list[Message]
    tools: list[dict[str, Any]] | None


def chat(dialect: str, row: ExportRow, vocabulary: Vocabulary) -> Chat | str:
    """The row in this dialect, or the reason why it cannot be told in it."""
    if row.cut:
        return "cut"
    if dialect == "torchspec":
        return _torchspec(row, vocabulary)
    history: list[Message] = row.prompt["messages"]
    messages = [*history, assistant_message(row.content, row.reasoning, row.tool_calls)]
    tools: list[dict[str, Any]] | None = row.prompt["tools"]
    has_calls = any(m.get("tool_calls") for m in messages)
    group = "calls" if has_calls else "tools" if tools else "plain"
    if dialect == "specforge":
        messages = _with_system(messages)
        flat = [_flat(m, group != "plain", as_text=True) for m in messages]
        group = "plain" if group == "plain" else "tools"
        return Chat(group, _row(row, "conversations", flat, _column(group, tools)), messages, tools)
    flat = [_flat(m, has_calls, as_text=False) for m in messages]
    if dialect == "modelopt":  # its template call gets no tools
        return Chat("calls" if has_calls else "plain", _row(row, "messages", flat, None), messages, None)
    name = "conversations" if dialect == "speculators" else "messages"
    return Chat(group, _row(row, name, flat, _column(group, tools)), messages, tools)


def survival(row: ExportRow, told: Chat, render: Render) -> str:
    """`equal` where rendering and tokenising this chat gives the very ids that were sent and sampled; `longer` where it gives
    them and then more, such as the line end that templates put behind the end token; else `other`.
    """
    ids, ours = render(told.messages, told.tools), np.concatenate((row.prompt_ids, row.completion_ids))
    if ids is None or not np.array_equal(ids[:len(ours)], ours):
        return "other"
    return "equal" if len(ids) == len(ours) else "longer"


def _row(row: ExportRow, name: str, messages: list[Message], tools: list[dict[str, Any]] | None) -> dict[str, Any]:
    line: dict[str, Any] = {"id": row.id, name: messages}
    return line if tools is None else {**line, "tools": json.dumps(tools, ensure_ascii=False)}


def _column(group: str, tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """In a folder with tools every row has the column, be it empty."""
    return None if group == "plain" else tools or []


def _with_system(messages: list[Message]) -> list[Message]:
    # SpecForge puts a system prompt of its own before a conversation that has none.
    return messages if messages[0]["role"] == "system" else [{"role": "system", "content": ""}, *messages]


def _flat(message: Message, tool_fields: bool, as_text: bool) -> Message:
    """Every message with the same fields of the same types: Arrow's one schema."""
    flat: Message = {"role": message["role"], "content": message["content"],
                     "reasoning_content": message.get("reasoning_content", "")}
    if tool_fields:
        calls = message.get("tool_calls", [])
        flat["tool_calls"] = json.dumps(calls, ensure_ascii=False) if as_text else calls
        flat["tool_call_id"], flat["name"] = message.get("tool_call_id", ""), message.get("name", "")
    return flat


def _torchspec(row: ExportRow, vocabulary: Vocabulary) -> Chat | str:
    """Thinking inline, and tool calls as the model wrote them; TorchSpec would turn parsed ones into Python's notation."""
    history: list[Message] = row.prompt["messages"]
    if any(m.get("tool_calls") or m["role"] == "tool" for m in history):
        return "calls_in_history"
    if row.prompt["tools"]:
        return "tools_never_rendered"
    content = row.content
    if row.tool_calls:
        raw = _raw_tools(row, vocabulary)
        if raw is None:
            return "raw_calls_unknown"
        content += raw
    told = [{"role": m["role"], "content": _thinking(m.get("reasoning_content")) + m["content"]} for m in history]
    told.append({"role": "assistant", "content": _thinking(row.reasoning) + content})
    return Chat("plain", {"id": row.id, "conversations": told}, told, None)


def _thinking(reasoning: str | None) -> str:
    return "" if reasoning is None else f"<think>{reasoning}</think>"


def _raw_tools(row: ExportRow, vocabulary: Vocabulary) -> str | None:
    spans = [s for s in row.spans if s.kind == "tools"]
    if vocabulary.decode is None or not spans:
        return None
    end = min(spans[-1].end, len(row.completion_ids) - end_tokens(row, vocabulary))
    return vocabulary.decode(row.completion_ids[spans[0].start:end])
