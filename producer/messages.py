"""The messages of a row, whichever form it has, as the one form that is stored and sent."""

import json
from typing import Any

from models.conversation import Message
from producer.sources import STRICT

ROLES = {"system": "system", "user": "user", "human": "user", "assistant": "assistant", "gpt": "assistant", "tool": "tool"}


class Malformed(Exception):
    """A row that is no prompt: a code for counting and a cause without the row's text. `read` makes it a Refusal."""

    def __init__(self, code: str, cause: str) -> None:
        super().__init__(cause)
        self.code, self.cause = code, cause


def conversation(row: dict[str, Any]) -> list[Message]:
    """The row's messages in order, checked: roles known, content text, every tool result answering a call."""
    found = _found(row)
    system = row.get("system")
    if isinstance(system, str) and system and not (found and _role(found[0]) == "system"):
        found = [{"role": "system", "content": system}, *found]
    messages = [_message(m) for m in found]
    _check_results(messages)
    return messages


def _found(row: dict[str, Any]) -> list[Any]:
    for name in ("messages", "conversations", "prompt"):
        value = row.get(name)
        if value is None:
            continue
        if isinstance(value, str) and name == "prompt":
            return [{"role": "user", "content": value}]
        if not isinstance(value, list):
            raise Malformed("bad_row", f"{name!r} is not a list of messages")
        if not value:
            raise Malformed("empty_conversation", f"{name!r} is empty")
        return value
    if row.get("instruction") is not None:
        return [{"role": "user", "content": _alpaca(row["instruction"], row.get("input"))}]
    raise Malformed("empty_conversation", "none of messages, conversations, prompt, instruction")


def _alpaca(instruction: object, given: object) -> object:
    if given is None or given == "":
        return instruction
    if not isinstance(instruction, str) or not isinstance(given, str):
        raise Malformed("bad_content", "instruction and input are not both text")
    return f"{instruction}\n\n{given}"


def _role(message: object) -> str:
    if not isinstance(message, dict):
        raise Malformed("bad_row", "a message is not an object")
    named = _first(message, "role", "from")
    role = ROLES.get(named) if isinstance(named, str) else None
    if role is None:
        raise Malformed("unsupported_role", "a role is none of system, user, assistant, tool")
    return role


def _first(message: dict[str, Any], *names: str) -> Any:
    """The first of these fields that is there and not null (Parquet gives every row every field)."""
    return next((message[n] for n in names if message.get(n) is not None), None)


def _message(given: dict[str, Any]) -> Message:
    role = _role(given)
    calls = _calls(given.get("tool_calls")) if role == "assistant" else []
    content = _content(_first(given, "content", "value"), may_be_empty=bool(calls) or role in ("system", "tool"))
    message: Message = {"role": role, "content": content}
    reasoning = _first(given, "reasoning_content", "reasoning")
    if role == "assistant" and isinstance(reasoning, str):
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    for name in ("name", "tool_call_id"):
        if isinstance(given.get(name), str):
            message[name] = given[name]
    return message


def _content(value: object, may_be_empty: bool) -> str:
    if isinstance(value, list):
        value = "".join(_part(part) for part in value)
    if value is None and may_be_empty:
        return ""
    if not isinstance(value, str):
        raise Malformed("bad_content", "a message's content is not text")
    if not may_be_empty and not value.strip():
        raise Malformed("bad_content", "a message's content is empty")
    return value


def _part(part: object) -> str:
    if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise Malformed("bad_content", "a part of a message's content is not text")


def _calls(given: object) -> list[dict[str, Any]]:
    if given is None:
        return []
    if not isinstance(given, list):
        raise Malformed("bad_tools", "tool_calls is not a list")
    return [_call(call) for call in given]


def _call(given: object) -> dict[str, Any]:
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(given, dict) or not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Malformed("bad_tools", "a tool call names no function")
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        arguments = json.dumps({} if arguments is None else arguments, ensure_ascii=False)
    if not isinstance(given.get("id"), str):
        raise Malformed("bad_tools", "a tool call has no id")
    return {"id": given["id"], "type": "function", "function": {"name": function["name"], "arguments": arguments}}


def _check_results(messages: list[Message]) -> None:
    """A tool's result must answer an earlier call by id; results without an id take the open calls in order."""
    waiting: list[str] = []
    for message in messages:
        waiting += [call["id"] for call in message.get("tool_calls", ())]
        if message["role"] == "tool":
            answered = message.setdefault("tool_call_id", waiting[0] if waiting else "")
            if answered not in waiting:
                raise Malformed("unsupported_role", "a tool message that answers no call")
            waiting.remove(answered)


def unanswered(messages: list[Message]) -> bool:
    """Whether a call in a history has no result in it, which no provider takes."""
    results = {m.get("tool_call_id") for m in messages if m["role"] == "tool"}
    return any(call["id"] not in results for m in messages for call in m.get("tool_calls", ()))


def tools_of(value: object) -> list[dict[str, Any]] | None:
    """The `tools` of a row: a list of function definitions, or the same as JSON text; None where there are none."""
    if isinstance(value, str):
        try:
            value = STRICT.decode(value)
        except (ValueError, RecursionError) as error:
            raise Malformed("bad_tools", "tools is text that is not JSON") from error
    if value is None or value == []:
        return None
    if not isinstance(value, list) or not all(_is_tool(tool) for tool in value):
        raise Malformed("bad_tools", "tools is not a list of {type: function, function: {name, ...}}")
    return value


def _is_tool(tool: object) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)
