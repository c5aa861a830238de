"""Ids that came with a reply, held against what else the reply says: its text, its count, its end."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from models.answer import Answer
from models.tokens.parts import CUT
from models.tokens.profile import Think
from models.tokens.rebuild import Rebuilder
from models.tokens.row import Span

REPLACED = b"\xef\xbf\xbd"


@dataclass(frozen=True, slots=True)
class Evidence:
    rebuilder: Rebuilder
    answer: Answer
    truncated: bool
    inside: bool = False        # the prompt ends inside a think block

    @property
    def ended(self) -> bool:
        return not self.truncated and self.answer.finish_reason in ("stop", "tool_calls")

    def spans(self, ids: Sequence[int]) -> tuple[Span, ...]:
        """What each stretch of sampled ids is, told by the marker tokens in it."""
        rebuilder, end = self.rebuilder, len(ids)
        stop = [Span("stop", end - 1, end)] if ids and ids[-1] in rebuilder.ends else []
        end -= len(stop)
        spans: list[Span] = []
        at = 0
        if rebuilder.open >= 0 and at < end and ids[0] == rebuilder.open:
            spans.append(Span("marker", 0, 1))
            at = 1
        closed = next((i for i in range(at, end) if ids[i] == rebuilder.close), None) if rebuilder.close >= 0 else None
        if closed is not None:
            spans += [Span("reasoning", at, closed), Span("marker", closed, closed + 1)]
            at = closed + 1
        tools = next((i for i in range(at, end) if ids[i] == rebuilder.tools_id), end)
        thinking = closed is None and (bool(spans) or self.inside or bool(self.answer.reasoning and not self.answer.content))
        spans += [Span("reasoning" if thinking else "content", at, tools), Span("tools", tools, end), *stop]
        return tuple(s for s in spans if s.end > s.start)


def disagreement(evidence: Evidence, ids: list[int]) -> tuple[str, str]:
    """(why the ids cannot be this reply's, why they may not be all of it), each "" when they agree."""
    size, ends = evidence.rebuilder.vocabulary.size, evidence.rebuilder.ends
    if not ids:
        return "no ids", ""
    if min(ids) < 0 or max(ids) >= size:
        return f"ids outside 0..{size - 1}", ""
    if not tells(evidence, ids):
        return "the ids decode to another text", ""
    if evidence.ended and ids[-1] not in ends:
        return "", "the answer ended without an end token"
    if not evidence.ended and ids[-1] in ends:
        return "", "an answer that did not end has an end token"
    return "", ""


def tells(evidence: Evidence, ids: Sequence[int]) -> bool:
    """Whether the ids' visible text is the reply's. White space at the edges of parsed fields is the server's to drop."""
    answer, vocabulary = evidence.answer, evidence.rebuilder.vocabulary
    if ids and ids[-1] in evidence.rebuilder.ends:
        ids = ids[:-1]      # no server shows the end token, also where it is not a special one
    visible = _loose(vocabulary.decode(ids, hidden=False).decode("utf-8", "replace"))
    if answer.sampled_text is not None:
        return visible == _loose(answer.sampled_text)
    think = evidence.rebuilder.profile.think
    if think is None or answer.reasoning is None:
        empty = think is not None and _told(_after_empty_thought(visible, think), "", answer)
        return empty or _told(visible, _loose(answer.reasoning or "").strip(), answer)
    thought = _loose(answer.reasoning).strip()
    if think.close in visible:
        left, visible = visible.split(think.close, 1)
        if left.strip().removeprefix(think.open).strip() != thought:
            return False
        thought = ""
    return _told(visible.strip().removeprefix(think.open), thought, answer)


def _told(visible: str, thought: str, answer: Answer) -> bool:
    """Whether this is the rest of the answer: of its calls, a parser shows only what it understood."""
    visible, said = visible.strip(), thought + _loose(answer.content).strip()
    if answer.tool_calls:
        rest = visible.removeprefix(said)
        return len(rest) < len(visible) + (not said) and all(c.name in rest for c in answer.tool_calls)
    return visible == said


def _after_empty_thought(visible: str, think: Think) -> str:
    """A server has no field for a thought that is empty, and shows no marker of it either."""
    thought, closed, rest = visible.partition(think.close)
    return rest if closed and not thought.strip().removeprefix(think.open).strip() else visible


def _loose(text: str) -> str:
    """Servers differ in how many U+FFFD they put for broken bytes, and hold back a cut character at the end."""
    return re.sub(CUT + "+", CUT, text).rstrip(CUT)


def by_bytes(evidence: Evidence, items: tuple[bytes, ...]) -> list[int] | None:
    """Ids from the true bytes of every token; None where they are not true, not all there, or not this text.

    Some servers fill `bytes` from decoded strings, so that a split character reads EF BF BD (vLLM, TensorRT-LLM).
    """
    rebuilder, billed = evidence.rebuilder, evidence.answer.usage.completion_tokens
    stop = rebuilder.vocabulary.table[rebuilder.stop]
    if evidence.ended and items and items[-1] == b"":
        items = (*items[:-1], stop)
    known = [rebuilder.vocabulary.id_of.get(item) for item in items]
    if billed is None or None in known or any(REPLACED in item for item in items):
        return None
    ids = [i for i in known if i is not None]
    if evidence.ended and ids[-1] not in rebuilder.ends:
        ids.append(rebuilder.stop)
    if not 0 <= len(ids) - billed <= 1 or len(ids) - billed > int(evidence.ended):
        return None
    return ids if tells(evidence, ids) else None
