"""An answer as a provider would have given it: known ids turned into text, fields and counts in that provider's way."""

import re
from dataclasses import dataclass
from functools import lru_cache

from models.answer import Answer, ToolCall, Usage
from models.tokens.evidence import Evidence
from models.tokens.profile import Tools
from models.tokens.rebuild import Rebuilder
from models.tokens.row import Row, Span


@dataclass(frozen=True, slots=True)
class Style:
    """What a provider does between the engine and the reply.

    reasoning: field | inline. strip: white space at the edges of both fields is dropped. stop_billed: the end token counts.
    parsed: tool calls are taken out of the text. renamed: and get ids of the server's own. held: a cut character at the end
    is left out, else it reads U+FFFD. known: rows with known ids are there to calibrate from.
    """

    name: str
    reasoning: str = "field"
    strip: bool = False
    stop_billed: bool = True
    parsed: bool = False
    renamed: bool = False
    held: bool = False
    known: bool = True


STYLES = (
    Style("raw partition"),
    Style("raw partition, cut characters left out", held=True),
    Style("stripped, white space known", strip=True),
    Style("stripped, white space unknown", strip=True, known=False),
    Style("stop unbilled", stop_billed=False),
    Style("stripped, known, stop unbilled", strip=True, stop_billed=False),
    Style("stripped, unknown, stop unbilled", strip=True, stop_billed=False, known=False),
    Style("reasoning inside content", reasoning="inline"),
    Style("tool calls parsed, ids kept", parsed=True),
    Style("tool calls parsed, ids renamed", parsed=True, renamed=True),
)


def replay(rebuilder: Rebuilder, row: Row, truncated: bool, style: Style) -> Answer:
    """The text answer of `style` for a row whose ids are known."""
    ids = row.completion_ids.tolist()
    ended = bool(row.spans) and row.spans[-1].kind == "stop"
    text = {s.kind: _shown(rebuilder, ids, s, style) for s in row.spans if s.kind in ("reasoning", "content", "tools")}
    thought, content, tools = text.get("reasoning"), text.get("content", ""), rebuilder.profile.tools
    calls = _parsed(text["tools"], tools) if style.parsed and "tools" in text and tools else ()
    content += "" if calls else text.get("tools", "")
    if style.reasoning == "inline" and thought is not None and rebuilder.profile.think:
        think = rebuilder.profile.think
        began = think.open if ids[0] == rebuilder.open else ""
        ends = think.close if rebuilder.close in ids else ""
        thought, content = None, f"{began}{thought}{ends}{content}"
    if style.strip:
        thought, content = thought.strip() if thought is not None else None, content.strip()
    return Answer(
        content=content, reasoning=thought, reasoning_form="field" if thought is not None else "none",
        tool_calls=_renamed(calls) if style.renamed else calls,
        finish_reason="length" if truncated else "tool_calls" if calls else "stop",
        usage=Usage(prompt_tokens=len(row.prompt_ids), completion_tokens=len(ids) - (ended and not style.stop_billed)),
        provider=style.name)


def known(rebuilder: Rebuilder, row: Row, truncated: bool) -> Evidence:
    """The row's own reply, for its spans."""
    inside = rebuilder.inside(row.prompt_ids)
    return Evidence(rebuilder, Answer(finish_reason="length" if truncated else "stop"), truncated, inside)


def _shown(rebuilder: Rebuilder, ids: list[int], span: Span, style: Style) -> str:
    data = rebuilder.vocabulary.decode(ids[span.start:span.end], hidden=False)
    text = data.decode("utf-8", "replace")
    return text.rstrip("\ufffd") if style.held else text


@lru_cache(maxsize=16)
def _grammar(tools: Tools) -> re.Pattern[str]:
    fields = {"{id}": r"(?P<id>[^<]*?)", "{name}": r"(?P<name>[^\"<]*?)", "{arguments}": r"(?P<arguments>.*?)"}
    parts = re.split(r"(\{(?:id|name|arguments)\})", tools.call)
    return re.compile("".join(fields.get(p, re.escape(p)) for p in parts), re.S)


def _parsed(text: str, tools: Tools) -> tuple[ToolCall, ...]:
    """The calls of a complete tool section, () of an incomplete one."""
    if not text.rstrip().endswith(tools.close or tools.call.rsplit("}", 1)[-1].strip()):
        return ()
    name = re.compile(re.escape(tools.id).replace(re.escape("{name}"), "(.*)").replace(re.escape("{index}"), "[0-9]+"))
    calls = []
    for n, found in enumerate(_grammar(tools).finditer(text)):
        given = found.groupdict()
        own = name.fullmatch(given["id"]) if "id" in given else None
        calls.append(ToolCall(given.get("id", f"call_{n}"), own.group(1) if own else given.get("name", ""), given["arguments"]))
    return tuple(calls)


def _renamed(calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(f"call_{n:08x}", c.name, c.arguments) for n, c in enumerate(calls))
