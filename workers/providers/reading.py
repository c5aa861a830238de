"""From bytes to an Answer or a Problem. No body, however hostile, makes it raise.

Text is taken as sent. Three rewrites are allowed and each leaves its flag: a think block split out of the content
(split_think), one trailing end-of-turn marker dropped (stripped_eot), text parts joined (joined_parts).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from models.answer import Answer, ToolCall, Usage
from models.blob import Ids
from models.names import cleaned, unpaired
from workers.providers import stream
from workers.providers.base import Ask, Exchange, Problem
from workers.providers.document import load
from workers.providers.problems import mapping, name_in, problem_of
from workers.providers.usage import usage_of

END_OF_TURN = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>", "[EOS]",
               "[EOT]", "</s>", "<｜end▁of▁sentence｜>")
FINISH = {"end_turn": "stop", "eos": "stop", "eos_token": "stop", "stop_sequence": "stop", "completed": "stop",
          "max_tokens": "length", "max_output_tokens": "length", "model_length": "length", "limit": "length",
          "function_call": "tool_calls", "tool_use": "tool_calls", "safety": "content_filter",
          "cancelled": "abort", "canceled": "abort", "insufficient_system_resource": "abort"}
MAX_ID = 2**31

Reading = tuple[Answer | None, Problem | None]
Shape = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def read(body: bytes, content_type: str = "", thinking: bool = True, as_chat: Shape | None = None) -> Reading:
    """A whole reply. thinking: whether a bare `</think>` in the content ends a thought (the template opened it).

    as_chat: brings another route's document into the shape of a chat reply.
    """
    text = body.strip(b" \t\r\n").removeprefix(b"\xef\xbb\xbf").lstrip(b" \t\r\n")
    if not text:
        return None, Problem("empty_body")
    if "event-stream" in content_type or text.startswith((b"data:", b": ", b"event:")):
        return read_stream(stream.gathered(body), thinking)
    if "html" in content_type or text.startswith(b"<"):
        return None, Problem("not_json", message=text[:2_000].decode("utf-8", "replace"))
    try:
        document = load(text)
    except ValueError:
        return None, Problem("bad_json")
    if as_chat is not None and isinstance(document, dict):
        document = as_chat(document)
    return read_document(document, thinking)


def read_stream(gather: stream.Gather, thinking: bool = True) -> Reading:
    """What a stream gave. The answer is kept also from one that broke off."""
    answer, problem = read_document(gather.document(), thinking)
    if gather.broken:
        problem = Problem("bad_json")
    elif gather.truncated and problem is None:
        problem = Problem("stream_truncated")
    return answer, problem


def read_document(document: Any, thinking: bool = True) -> Reading:
    if not isinstance(document, dict):
        return None, Problem("bad_schema")
    answer = _answer(document, thinking)
    return answer, _problem(document)


def _problem(document: dict[str, Any]) -> Problem | None:
    error = document.get("error")
    if error:
        return problem_of(error, document)
    if document.get("object") == "error" or ("detail" in document and "choices" not in document):
        return problem_of(document, {})
    choices = document.get("choices")
    if choices is None or choices == []:
        return Problem("no_choices" if choices == [] or {"id", "usage", "object"} & document.keys() else "bad_schema")
    choice = _first(choices)
    if choice is None:
        return Problem("bad_schema")
    if choice.get("error") or choice.get("finish_reason") == "error":
        return problem_of(choice.get("error") or "", document)
    message = _message(choice)
    if message is None:
        return Problem("no_message")
    return None if isinstance(message, dict) and _content(message.get("content")) is not None else Problem("bad_schema")


def _answer(document: dict[str, Any], thinking: bool) -> Answer | None:
    choices = document.get("choices")
    choice = _first(choices) or {}
    flags: set[str] = set()
    usage = usage_of(document.get("usage"), flags)
    message = _message(choice)
    if not isinstance(message, dict):
        return Answer(usage=usage, provider=name_in(document, "provider"), model=name_in(document, "model")) if choices else None
    if isinstance(choices, list) and len(choices) > 1:
        flags.add("extra_choices")
    content = _content(message.get("content"))
    if isinstance(message.get("content"), list):
        flags.add("joined_parts")
    reasoning, form = _reasoning(message, flags)
    finish, native = _finish(choice.get("finish_reason")), _finish(choice.get("native_finish_reason"))
    content, reasoning, form = _split_think(content or "", reasoning, form, thinking, flags)
    if finish in ("stop", "tool_calls") and native != "length":
        content = _drop_end_of_turn(content, flags)
    if message.get("refusal"):
        flags.add("refusal")
    ids = _completion_ids(document, choice, usage)
    verbose = mapping(document.get("__verbose"))
    return Answer(
        content=content, reasoning=reasoning, reasoning_form=form, tool_calls=_tool_calls(message.get("tool_calls"), flags),
        finish_reason=finish, native_finish_reason=native, usage=usage,
        prompt_ids=_ids(document.get("prompt_token_ids", choice.get("prompt_token_ids"))
                        or mapping(document.get("sglext")).get("input_ids")),
        completion_ids=ids, sampled_text=verbose["content"] if isinstance(verbose.get("content"), str) else None,
        token_bytes=None if ids is not None else _token_bytes(choice),
        provider=name_in(document, "provider"), model=name_in(document, "model"),
        generation_id=name_in(document, "id"), flags=frozenset(flags))


def _first(choices: Any) -> dict[str, Any] | None:
    """Choice 0, wherever it stands."""
    found = [c for c in choices if isinstance(c, dict)] if isinstance(choices, list) else []
    return next((c for c in found if c.get("index") in (0, None)), found[0] if found else None)


def _message(choice: dict[str, Any]) -> Any:
    if isinstance(choice.get("text"), str) and choice.get("message") is None:
        return {"content": choice["text"]}
    return choice.get("message")


def _content(content: Any) -> str | None:
    """Text, "" for null, None for what cannot be read without losing something."""
    if content is None:
        return ""
    if isinstance(content, str):
        return _paired(content)
    if isinstance(content, list):
        parts = [p.get("text") if isinstance(p, dict) else p for p in content]
        texts = [p for p in parts if isinstance(p, str)]
        return _paired("".join(texts)) if len(texts) == len(parts) else None
    return None


def _paired(text: str) -> str:
    """Halves of one character that came in two pieces belong together; a lone half stays as it is."""
    if not unpaired(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def _finish(value: Any) -> str:
    name = value.lower() if isinstance(value, str) else ""
    return FINISH.get(name, cleaned(name, 40))


def _reasoning(message: dict[str, Any], flags: set[str]) -> tuple[str | None, str]:
    """Reasoning has several names and often two of them carry the same text: it is used once."""
    fields = [_paired(v) for v in (message.get("reasoning"), message.get("reasoning_content")) if isinstance(v, str)]
    filled = [f for f in fields if f]
    if len(set(filled)) > 1:
        flags.add("reasoning_conflict")
    details = message.get("reasoning_details")
    details = [d for d in details if isinstance(d, dict)] if isinstance(details, list) else []
    texts = [d["text"] for d in details if isinstance(d.get("text"), str) and d.get("type") in (None, "reasoning.text")]
    if any(d.get("type") not in (None, "reasoning.text") for d in details):
        flags.add("reasoning_hidden")
        return (filled[0] if filled else None), "hidden"
    if filled:
        return filled[0], "field"
    if any(texts):
        return _paired("".join(texts)), "details"
    return (fields[0], "field") if fields else (None, "none")


def _split_think(content: str, reasoning: str | None, form: str, thinking: bool, flags: set[str]) -> tuple[str, str | None, str]:
    if "think>" not in content:
        return content, reasoning, form
    opened = content.startswith("<think>")
    body = content.removeprefix("<think>")
    thought, closed, rest = body.partition("</think>")
    if not (opened or (closed and thinking)):
        return content, reasoning, form
    if reasoning and reasoning != thought:
        flags.add("reasoning_conflict")
        return content, reasoning, form
    flags.add("split_think")
    return rest, thought, "inline" if not reasoning else form


def _drop_end_of_turn(content: str, flags: set[str]) -> str:
    for marker in END_OF_TURN:
        if content.endswith(marker):
            flags.add("stripped_eot")
            return content[: -len(marker)]
    return content


def _tool_calls(calls: Any, flags: set[str]) -> tuple[ToolCall, ...]:
    found = []
    for call in calls if isinstance(calls, list) else ():
        function = mapping(mapping(call).get("function"))
        name, arguments, call_id = function.get("name"), function.get("arguments"), mapping(call).get("id")
        if not isinstance(name, str) or not isinstance(arguments, str):
            flags.add("tool_calls_unreadable")
            continue
        found.append(ToolCall(id=call_id if isinstance(call_id, str) else "", name=name, arguments=arguments))
    return tuple(found)


def _ids(value: Any) -> Ids | None:
    if not isinstance(value, list) or not all(type(i) is int and 0 <= i < MAX_ID for i in value):
        return None
    return np.asarray(value, dtype=np.int32)


def _completion_ids(document: dict[str, Any], choice: dict[str, Any], usage: Usage) -> Ids | None:
    """Ids as the engine gave them, by whichever of its names. Of log-probabilities only when none is missing."""
    lists = mapping(document.get("sglext")).get("output_ids")
    for value in (choice.get("token_ids"), choice.get("response_token_ids"), mapping(document.get("__verbose")).get("tokens"),
                  lists[0] if isinstance(lists, list) and lists else None):
        ids = _ids(value)
        if ids is not None and (ids.size or not usage.completion_tokens):
            return ids
    items = mapping(choice.get("logprobs")).get("content")
    if isinstance(items, list) and items and len(items) == usage.completion_tokens:
        return _ids([mapping(item).get("id") for item in items])
    return None


def _token_bytes(choice: dict[str, Any]) -> tuple[bytes, ...] | None:
    items = mapping(choice.get("logprobs")).get("content")
    if not isinstance(items, list) or not items:
        return None
    lists = [b for b in (mapping(item).get("bytes") for item in items) if isinstance(b, list)]
    try:
        return tuple(bytes(b) for b in lists) if len(lists) == len(items) else None
    except (TypeError, ValueError):
        return None


def interpreted(
    exchange: Exchange, gather: stream.Gather, ask: Ask, as_chat: Shape | None = None,
) -> Exchange:
    """The exchange with what its body says. A reply that lost its end is read only where it was a stream."""
    thinking = ask.thinking is not False and (ask.reasoning or {}).get("enabled") is not False
    kind = exchange.headers.get("content-type", "")
    if gather.events:
        exchange.answer, exchange.problem = read_stream(gather, thinking)
    elif exchange.status is not None and (exchange.fault is None or exchange.status >= 300):
        exchange.answer, exchange.problem = read(exchange.body, kind, thinking, as_chat)
    if exchange.answer is not None and exchange.dialect == "openrouter":
        exchange.answer = _named(exchange.answer, exchange.headers)
    return exchange


def _named(answer: Answer, headers: Mapping[str, str]) -> Answer:
    """A router's reply names itself and its host; where it does not, no plan's exclusions can be held against it."""
    if not answer.provider:
        answer = replace(answer, flags=answer.flags | {"provider_unknown"})
    if not answer.generation_id:
        name = cleaned(headers.get("x-generation-id", ""))
        answer = replace(answer, generation_id=name, flags=answer.flags | {"id_missing"})
    return answer
