"""From a text answer to the id sequences it can have come from, likeliest first.

An answer is a chain of runs: [open] reasoning [close] content [tools] [stop]. No merge crosses a marker, so each run is
encoded alone. What the text leaves open (markers as tokens or spelled out, implied end of thought, call ids, white space
a provider dropped) gives one candidate each; `grade` lets the count decide, or says that it cannot.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from models.answer import ToolCall
from models.blob import Ids
from models.tokens.calibrate import Edge
from models.tokens.calls import call_text, variants
from models.tokens.parts import Parts, edges_of
from models.tokens.profile import Profile
from models.tokens.row import Span
from models.tokens.spell import NO_IDS, Run, Speller
from models.tokens.vocabulary import Vocabulary


@dataclass(frozen=True, slots=True)
class Way:
    """How the runs of an answer may have been. sure: a unique match of the count makes it `verified`."""

    runs: tuple[Run, ...]
    shape: str
    rule: str = ""
    sure: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    ids: Ids
    spans: tuple[Span, ...]
    shape: str
    rule: str
    sure: bool


class Rebuilder:
    """What of a model is needed to list an answer's candidates. Immutable, shared by threads."""

    def __init__(self, profile: Profile, vocabulary: Vocabulary) -> None:
        self.profile, self.vocabulary = profile, vocabulary
        self.stop = vocabulary.added[profile.stop]
        self.open = vocabulary.added[profile.think.open] if profile.think else -1
        self.close = vocabulary.added[profile.think.close] if profile.think else -1
        call = profile.tools.open or profile.tools.call if profile.tools else ""
        first = vocabulary.marker.match(call)
        self.tools_text = first.group() if first else ""
        self.tools_id = vocabulary.added.get(self.tools_text, -1)
        self.ends = frozenset(vocabulary.id_of[text.encode()] for text in {profile.stop, *profile.ends})
        begin = vocabulary.marker.match(profile.tools.call) if profile.tools else None
        self.call_begin = vocabulary.added[begin.group()] if begin else -1

    def inside(self, prompt_ids: Ids) -> bool:
        """Whether the prompt ends inside a think block, so that the answer begins with thought."""
        last = prompt_ids[-4:].tolist()
        return self.open in last and self.close not in last[last.index(self.open):]

    def candidates(
        self, parts: Parts, opened: bool, truncated: bool, edges: Mapping[str, Edge], prior: int
    ) -> Iterator[Candidate]:
        """edges: white space to try, by edge; those not named are taken as sent. prior: tool calls already in the prompt."""
        spell = Speller(self.vocabulary)
        for way in self._ways(parts, opened, truncated, prior):
            for runs, sure in _with_edges(way.runs, parts, truncated, opened, edges):
                yield _assembled(replace(way, runs=runs, sure=way.sure and sure), spell)
        if truncated and not parts.trimmed and not parts.calls:
            yield from self._half_characters(parts, opened, prior, spell)

    def _ways(self, parts: Parts, opened: bool, truncated: bool, prior: int) -> Iterator[Way]:
        bodies = (parts.thought or "") + parts.content
        parses = (True, False) if self.vocabulary.marker.search(bodies) else (False,)
        for parse in parses:
            spelled = "markers spelled out" if len(parses) == 2 and not parse else ""
            for thought in self._thoughts(parts, opened, truncated, parse):
                for calls, call_rule, sure in self._calls(parts.calls, prior):
                    tail = () if truncated else (Run("stop", marker=self.stop),)
                    kind = "reasoning" if parts.thought is None and thought.shape == "open" else "content"
                    runs = (*thought.runs, *self._content(parts.content, parse, kind), *calls, *tail)
                    rule = ", ".join(filter(None, [spelled, thought.rule, call_rule]))
                    tools = "+tools" if parts.calls else ""
                    yield Way(runs, f"{'cut' if truncated else 'end'}:{thought.shape}{tools}", rule, thought.sure and sure)

    def _thoughts(self, parts: Parts, opened: bool, truncated: bool, parse: bool) -> Iterator[Way]:
        close = (Run("marker", marker=self.close),)
        if parts.thought is None:
            unended, empty = Way((), "open", "no end of thought"), Way(close, "think", "thought is empty")
            if not opened:
                yield Way((), "plain")
            elif truncated:
                yield from (replace(unended, rule=""), *(() if parts.trimmed else (replace(empty, sure=False),)))
            else:
                yield from (empty, unended)
            return
        begin = () if opened or self.open < 0 else (Run("marker", marker=self.open),)
        body = (*begin, Run("reasoning", parts.thought, parse=parse))
        if self.close < 0:
            yield Way(body, "open")
            return
        after = parts.begun or bool(parts.calls) or parts.form == "inline"
        ended, unended = Way((*body, *close), "think"), Way(body, "open", "end of thought implied")
        if after or not truncated:
            yield ended
            if not parts.begun and parts.form != "inline":
                yield unended
        else:
            yield replace(unended, rule="")
            if not parts.trimmed:
                yield replace(ended, rule="cut at the end of thought", sure=False)

    def _content(self, text: str, parse: bool, kind: str) -> tuple[Run, ...]:
        """Raw tool text in content is a span of its own."""
        at = text.find(self.tools_text) if self.tools_text and parse else -1
        if at < 0:
            return (Run(kind, text, parse=parse),)
        return Run(kind, text[:at], parse=parse), Run("tools", text[at:], parse=True)

    def _calls(self, calls: tuple[ToolCall, ...], prior: int) -> Iterator[tuple[tuple[Run, ...], str, bool]]:
        tools = self.profile.tools
        if not calls or tools is None:
            yield (), "" if not calls else "no tool grammar", not calls
            return
        for written, rule in variants(calls, tools, prior):
            yield tuple(self._call_runs(call_text(written, tools))), rule, not rule

    def _call_runs(self, pieces: Iterator[tuple[str, bool]]) -> Iterator[Run]:
        pending = ""
        for words, grammar in pieces:
            at = 0
            for found in self.vocabulary.marker.finditer(words) if grammar else ():
                yield Run("tools", pending + words[at:found.start()])
                yield Run("tools", marker=self.vocabulary.added[found.group()])
                pending, at = "", found.end()
            pending += words[at:]
        yield Run("tools", pending)

    def _half_characters(self, parts: Parts, opened: bool, prior: int, spell: "Speller") -> Iterator[Candidate]:
        """A cut answer's last token may have begun a character that the text no longer shows."""
        text = parts.content or parts.thought or ""
        halves = self.vocabulary.half_characters
        for length in range(1, max(map(len, halves), default=0) + 1):
            for half in halves.get(text[-length:], ()) if length <= len(text) else ():
                shorter = replace(parts, content=text[:-length]) if parts.content else replace(parts, thought=text[:-length])
                way = next(self._ways(shorter, opened, True, prior), None)
                if way is not None and way.runs:
                    last = Run(way.runs[-1].kind, marker=half)
                    yield _assembled(Way((*way.runs, last), way.shape, "cut inside a character", False), spell)


def _assembled(way: Way, spell: Speller) -> Candidate:
    found, spans, end = [NO_IDS], list[Span](), 0
    for run in way.runs:
        ids, start = spell.ids(run), end
        found.append(ids)
        end += len(ids)
        if spans and spans[-1].kind == run.kind:
            spans[-1] = replace(spans[-1], end=end)
        elif end > start:
            spans.append(Span(run.kind, start, end))
    return Candidate(np.concatenate(found), tuple(spans), way.shape, way.rule, way.sure)


def _with_edges(
    runs: tuple[Run, ...], parts: Parts, truncated: bool, opened: bool, edges: Mapping[str, Edge]
) -> Iterator[tuple[tuple[Run, ...], bool]]:
    """The runs with each white space that may stand at each edge of the answer, and whether that is known."""
    names = [n for n in edges_of(parts, truncated, opened) if n in edges]
    sure = all(edges[n].settled for n in names)
    texts = [i for i, run in enumerate(runs) if run.text and (run.kind != "tools" or run.parse)]
    places = {name: texts[0] if "lead" in name else texts[-1] for name in names if texts}
    if parts.thought and parts.content:
        places.update({n: texts[n.startswith("content")] for n in names if n in ("think_tail", "content_lead")})
    for choice in product(*(edges[n].options for n in names)):
        spaces = dict(zip(names, choice, strict=True))
        yield tuple(_spaced(run, [n for n in names if places.get(n) == i], spaces) for i, run in enumerate(runs)), sure


def _spaced(run: Run, names: list[str], spaces: Mapping[str, str]) -> Run:
    lead = "".join(spaces[n] for n in names if "lead" in n)
    tail = "".join(spaces[n] for n in names if "lead" not in n)
    return replace(run, lead=lead, tail=tail) if lead or tail else run
