"""Answers that were made elsewhere: one row of a file -> what it answers, and the reply in the shape of a chat completion.

| form | told by |
|---|---|
| a reply with ids | `output_ids` (or completion_ids, token_ids), with or without text and `meta_info` |
| a reply as text | `choices`, or content, text, answer ...; in the row or its `response`, `raw_response` ..., as JSON text too |
| conversation | `conversations` or `messages` that end with the assistant |
| token row | `input_ids` with `loss_mask`, `assistant_masks`, `completion_mask` or `labels` |

Nothing is made up: what a row does not say stays unsaid, but for the two things that `flags` name.
"""

import json
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from typing import Any

from models.conversation import Message
from models.states import Grade
from producer.messages import Malformed, conversation, tools_of
from producer.prompts import id_of, metadata_of

KEYS = ("key", "sample_id", "custom_id", "id")
WRAPPERS = ("response", "raw_response", "raw", "reply", "body", "result")
TEXTS = ("content", "text", "answer", "response", "completion", "output", "generated_text")
IDS = ("output_ids", "completion_ids", "completion_token_ids", "output_token_ids", "token_ids")
MASKS = ("loss_mask", "assistant_masks", "completion_mask")
PROMPTS = ("messages", "conversations", "prompt", "instruction")
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "reasoning_effort", "seed")
SURE = {"choices", "meta_info", *IDS}
FINISH_ASSUMED, TEXT_FROM_IDS = "finish_assumed", "text_from_ids"


@dataclass(frozen=True, slots=True)
class Words:
    """What of a model is needed to read ids. decode: ids to the text that a server would show."""

    ends: Container[int]
    decode: Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Reply:
    """key: as the row has it. messages: None where the row does not hold its prompt. prompt_ids: where it holds them.

    document: a chat completion. best: the highest grade the row may get, where it says itself how its ids are known.
    flags: finish_assumed (no finish reason was given), text_from_ids (no text was, so nothing contradicts the ids).
    """

    line: int
    key: str | None
    messages: list[Message] | None
    tools: list[dict[str, Any]] | None
    prompt_ids: list[int] | None
    document: dict[str, Any]
    sampling: dict[str, Any]
    max_tokens: int | None
    quantization: str
    metadata: dict[str, Any]
    best: Grade = Grade.ENGINE
    flags: frozenset[str] = frozenset()


def reply_of(row: Any, line: int, words: Words) -> Reply:
    """Malformed, with a code and a cause that holds nothing of the row, if it holds no answer."""
    if not isinstance(row, dict):
        raise Malformed("bad_row", "the row is not a JSON object")
    if "input_ids" in row and (any(name in row for name in MASKS) or "labels" in row):
        return _token_row(row, line, words)
    given = _wrapped(row)
    messages = _messages(row)
    said: Message = {}
    if messages and messages[-1]["role"] == "assistant" and given is row and not SURE & row.keys():
        *messages, said = messages
    document, flags = _document(row, {**given, **said}, words)
    request = row.get("request") if isinstance(row.get("request"), dict) else {}
    return Reply(
        line, _key(row), messages, tools_of(row.get("tools", (request or {}).get("tools"))),
        _ints(row.get("prompt_ids", row.get("prompt_token_ids", given.get("input_ids")))), document, _sampling(row),
        _whole(_from(row, "max_tokens")), str(row.get("quantization") or ""), metadata_of(row.get("metadata")), flags=flags)


def _wrapped(row: dict[str, Any]) -> dict[str, Any]:
    """The reply itself, which may lie in a field of the row, as an object or as JSON text; else the row."""
    for name in WRAPPERS:
        value = row.get(name)
        if isinstance(value, str) and value.lstrip()[:1] == "{":
            try:
                value = json.loads(value, strict=False)
            except (ValueError, RecursionError):
                continue
            if not isinstance(value, dict) or not (SURE & value.keys()):     # an answer may itself be JSON
                continue
        if isinstance(value, dict):
            return value["body"] if isinstance(value.get("body"), dict) else value
    return row


def _messages(row: dict[str, Any]) -> list[Message] | None:
    for place in (row, row.get("request")):
        if isinstance(place, dict) and any(_is_prompt(place.get(name)) for name in PROMPTS):
            return conversation({**place, **{n: [_cleaned(m) for m in place[n]] for n in PROMPTS
                                             if isinstance(place.get(n), list)}})
    return None


def _is_prompt(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and _ints(value) is None)


def _cleaned(message: Any) -> Any:
    """Without the empty fields that exports give every message for Arrow's sake; calls as a list, also where they are text."""
    if not isinstance(message, dict):
        return message
    kept = {k: v for k, v in message.items() if k in ("role", "from", "content", "value") or v not in ("", [], "[]")}
    if isinstance(kept.get("tool_calls"), str):
        try:
            kept["tool_calls"] = json.loads(kept["tool_calls"])
        except (ValueError, RecursionError):
            raise Malformed("bad_tools", "tool_calls is text that is not JSON") from None
    return kept


def _document(row: dict[str, Any], reply: dict[str, Any], words: Words) -> tuple[dict[str, Any], frozenset[str]]:
    choices, ids = reply.get("choices"), next((i for n in IDS if (i := _ints(reply.get(n, row.get(n)))) is not None), None)
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        if ids is not None and "token_ids" not in choices[0]:
            choices = [{**choices[0], "token_ids": ids}, *choices[1:]]
        return {**reply, "choices": choices, "usage": _usage(row, reply, None),
                **{n: row[n] for n in ("provider", "model") if n not in reply and isinstance(row.get(n), str)}}, frozenset()
    text = next((reply[n] for n in TEXTS if isinstance(reply.get(n), str)), None)
    calls = reply.get("tool_calls") or []
    if ids is None and text is None and not calls:
        raise Malformed("no_answer", "a failed call" if reply.get("error") else "no answer in the row")
    return _chat(row, reply, text, ids, words)


def _chat(row: dict[str, Any], reply: dict[str, Any], text: str | None, ids: list[int] | None,
          words: Words) -> tuple[dict[str, Any], frozenset[str]]:
    meta = reply["meta_info"] if isinstance(reply.get("meta_info"), dict) else {}
    finish = _finish(meta.get("finish_reason", reply.get("finish_reason", row.get("finish_reason"))))
    calls = reply.get("tool_calls") or []
    flags = set()
    if not finish:
        flags.add(FINISH_ASSUMED)
        cut = ids is not None and not (ids and ids[-1] in words.ends)
        finish = "length" if cut else "tool_calls" if calls else "stop"
    choice: dict[str, Any] = {"index": 0, "finish_reason": finish}
    document: dict[str, Any] = {"id": str(meta.get("id") or reply.get("generation_id") or row.get("generation_id") or "")}
    if ids is not None:
        choice["token_ids"] = ids
        if text is None:
            flags.add(TEXT_FROM_IDS)
            text = words.decode(ids[:-1] if ids and ids[-1] in words.ends else ids)
            document["__verbose"] = {"content": text}
    message: dict[str, Any] = {"role": "assistant", "content": text or ""}
    for name in ("reasoning_content", "reasoning", "thinking"):
        if isinstance(reply.get(name), str):
            message["reasoning_content"] = reply[name]
            break
    if calls:
        message["tool_calls"] = calls
    prompt_ids = _ints(reply.get("input_ids", row.get("prompt_ids", row.get("prompt_token_ids"))))
    names = {n: v for n in ("provider", "model") if isinstance(v := reply.get(n, row.get(n)), str)}
    return {**document, **names, **({} if prompt_ids is None else {"prompt_token_ids": prompt_ids}),
            "choices": [{**choice, "message": message}], "usage": _usage(row, {**reply, **meta}, ids)}, frozenset(flags)


def _usage(row: dict[str, Any], reply: dict[str, Any], ids: list[int] | None) -> dict[str, Any] | None:
    """As the reply has it, wherever it says so; an engine that gave ids and no count gave as many tokens as ids."""
    place: dict[str, Any] = next((p for p in (reply.get("usage"), row.get("usage")) if isinstance(p, dict)), {})
    usage = {**{n: v for n in ("prompt_tokens", "completion_tokens") if (v := reply.get(n, row.get(n))) is not None}, **place}
    cost = next((v for p in (reply, row) for n in ("cost", "cost_usd") if (v := p.get(n)) is not None), None)
    if "cost" not in usage and cost is not None:
        usage["cost"] = cost
    if ids is not None and usage.get("completion_tokens") is None:
        usage["completion_tokens"] = len(ids)
    return usage or None


def _token_row(row: dict[str, Any], line: int, words: Words) -> Reply:
    prompt, completion = _parted(row, words)
    try:
        extra = json.loads(row["extra"]) if isinstance(row.get("extra"), str) else {}
    except (ValueError, RecursionError):
        extra = {}
    extra = extra if isinstance(extra, dict) else {}
    usage = {"completion_tokens": extra.get("billed_completion_tokens"), "prompt_tokens": extra.get("billed_prompt_tokens")}
    flat = {n: row[n] for n in ("finish_reason", "provider", "model", "cost", "cost_usd") if row.get(n) not in (None, "")}
    known = {"cost_usd": extra.get("cost_usd"), "usage": {k: v for k, v in usage.items() if v is not None}, **flat}
    best = _grade(row.get("exactness"))
    document, flags = _chat(known, known, None, completion, words)
    document["prompt_token_ids"] = prompt
    if best < Grade.LOGPROBS:       # rebuilt from text by whoever wrote the row: text is what it can stand for here
        del document["choices"][0]["token_ids"]
    messages = None
    if any(_is_prompt(row.get(name)) for name in PROMPTS):
        messages = _messages(row)
    sampling = extra.get("sampling") if isinstance(extra.get("sampling"), dict) else _sampling(row)
    return Reply(line, _key(row), messages, tools_of(row.get("tools")), prompt, document, sampling or {}, None,
                 str(row.get("quantization") or ""), metadata_of(extra.get("metadata")), best, flags)


def _parted(row: dict[str, Any], words: Words) -> tuple[list[int], list[int]]:
    """(prompt ids, sampled ids), the end token too where only the mask leaves it out."""
    ids = _ints(row["input_ids"])
    mask = next((_ints(row[n]) for n in MASKS if n in row), None)
    labels = row.get("labels")
    if mask is None and isinstance(labels, list):
        mask = [int(label != -100) for label in labels]
    if ids is None or mask is None or len(ids) != len(mask) or not set(mask) <= {0, 1} or 1 not in mask:
        raise Malformed("bad_mask", "input_ids and the mask are no lists of whole numbers of one length, or nothing is masked in")
    start, end = mask.index(1), len(mask) - mask[::-1].index(1)
    if not all(mask[start:end]):
        raise Malformed("bad_mask", "the mask covers more than one stretch; one row per generation is wanted")
    if end < len(ids) and (end + 1 < len(ids) or ids[end] not in words.ends):
        raise Malformed("bad_mask", "ids after the answer that are no end token")
    if not start:
        raise Malformed("bad_mask", "the row has no prompt")
    return ids[:start], ids[start:]


def _grade(label: Any) -> Grade:
    """A row that does not say how its ids are known came from an engine: nothing else gives ids."""
    return Grade[label.upper()] if isinstance(label, str) and label.upper() in Grade.__members__ else Grade.ENGINE


def _key(row: dict[str, Any]) -> str | None:
    names = [n for n in KEYS if not (n == "id" and "choices" in row)]       # a bare reply's id is its own
    key = next((row[n] for n in names if row.get(n) not in (None, "")), None)
    if key is None and row.get("primary_id") is not None and row.get("turn"):
        key = f"{row['primary_id']}#t{row['turn']}"
    return id_of(row.get("primary_id") if key is None else key)


def _from(row: dict[str, Any], name: str) -> Any:
    places = (row, *(row[n] for n in ("request", "sampling", "sampling_params") if isinstance(row.get(n), dict)))
    return next((p[name] for p in places if p.get(name) is not None), None)


def _sampling(row: dict[str, Any]) -> dict[str, Any]:
    return {n: v for n in SAMPLING if isinstance(v := _from(row, n), int | float | str)}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _finish(value: Any) -> str:
    value = value.get("type") if isinstance(value, dict) else value
    return value if isinstance(value, str) else ""


def _ints(value: Any) -> list[int] | None:
    return value if isinstance(value, list) and value and all(type(i) is int and 0 <= i < 2**31 for i in value) else None


def without_empty_system(reply: Reply) -> Reply | None:
    """The same without an empty system message, which an export for SpecForge puts before every conversation."""
    first = reply.messages[0] if reply.messages else None
    if reply.messages is None or first is None or first["role"] != "system" or first["content"]:
        return None
    return replace(reply, messages=reply.messages[1:])
