"""Parsed tool calls as the model may have written them, in the grammar of its profile."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace

from models.answer import ToolCall
from models.tokens.profile import Tools

FIELD = re.compile(r"\{(id|name|arguments)\}")


def variants(calls: tuple[ToolCall, ...], tools: Tools, prior: int) -> Iterator[tuple[tuple[ToolCall, ...], str]]:
    """The calls in each way they may have been written, likeliest first, with what was guessed ("" for as given).

    prior: calls already in the prompt, from which a model's index goes on.
    """
    for named, id_rule in _named(calls, tools, prior):
        for written, form in _written(named):
            yield written, ", ".join(filter(None, [id_rule, form]))


def call_text(calls: tuple[ToolCall, ...], tools: Tools) -> Iterator[tuple[str, bool]]:
    """Pieces of text in order; True: the grammar's own, whose markers are tokens; False: a value, whose markers are text."""
    yield tools.open, True
    for i, call in enumerate(calls):
        yield tools.join if i else "", True
        for n, piece in enumerate(FIELD.split(tools.call)):
            yield (str(getattr(call, piece)), False) if n % 2 else (piece, True)
    yield tools.close, True


def _named(calls: tuple[ToolCall, ...], tools: Tools, prior: int) -> Iterator[tuple[tuple[ToolCall, ...], str]]:
    """Ids in the model's own form are kept; a server's invention is replaced by the form, which is a guess at the index."""
    if "{id}" not in tools.call or all(_own(call, tools) for call in calls):
        yield calls, ""
        return
    for first in dict.fromkeys([prior, 0]):
        named = [tools.id.replace("{name}", c.name).replace("{index}", str(first + i)) for i, c in enumerate(calls)]
        yield tuple(replace(c, id=name) for c, name in zip(calls, named, strict=True)), f"call ids rebuilt from {first}"


def _own(call: ToolCall, tools: Tools) -> bool:
    head, _, tail = tools.id.partition("{name}")
    form = f"(?:{re.escape(head)})?{re.escape(call.name)}{re.escape(tail).replace(re.escape('{index}'), '[0-9]+')}"
    return re.fullmatch(form, call.id) is not None


def _written(calls: tuple[ToolCall, ...]) -> Iterator[tuple[tuple[ToolCall, ...], str]]:
    """The argument strings as given, then as a parser may have found them before writing them anew."""
    yield calls, ""
    try:
        values = [json.loads(c.arguments) for c in calls]
    except ValueError:
        return
    seen = {tuple(c.arguments for c in calls)}
    for form, separators in (("compact", (",", ":")), ("spaced", (", ", ": "))):
        texts = tuple(json.dumps(v, ensure_ascii=False, separators=separators) for v in values)
        if texts not in seen:
            seen.add(texts)
            yield tuple(replace(c, arguments=t) for c, t in zip(calls, texts, strict=True)), f"arguments {form}"
