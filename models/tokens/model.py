"""One language model's token side: prompts to ids, answers to graded rows, replies to a provider's convention."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from models.answer import Answer
from models.blob import Ids
from models.errors import ProfileError
from models.tokens import calibrate
from models.tokens.calibrate import Convention, Edge, Seen
from models.tokens.grade import FINISHED, grade, listing, refusal
from models.tokens.parts import edges_of, lead_of, part, tail_of
from models.tokens.profile import Profile
from models.tokens.rebuild import Rebuilder
from models.tokens.row import Row
from models.tokens.template import Messages, render
from models.tokens.vocabulary import open_vocabulary

RULES = 2                   # raise when the same answer may get other ids or another grade
SHIELD = "\ufdd0"           # a noncharacter: no template, and no honest text, holds it


@dataclass(frozen=True, slots=True)
class Sample:
    """A stored answer as calibration needs it."""

    answer: Answer
    prompt_ids: Ids
    truncated: bool


class Model:
    """Open once per process, share between threads. Calls take milliseconds of CPU: keep them off the event loop."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.vocabulary, found = open_vocabulary(profile)
        text = profile.template_text or found
        if text is None:
            raise ProfileError(profile=profile.name, cause="there is no chat template")
        self._template = text
        self.rebuilder = Rebuilder(profile, self.vocabulary)
        known = profile.model_dump_json(include={"ids", "stop", "ends", "think", "tools", "template", "tiktoken", "gguf"})
        rules = "\n".join([profile.digest, text, known, str(RULES)])
        self.version = f"{profile.name}:{hashlib.sha256(rules.encode()).hexdigest()[:12]}"

    @classmethod
    def open(cls, profile: Profile) -> "Model":
        """ProfileError when the vocabulary, an id or the template does not resolve."""
        return cls(profile)

    @property
    def vocab_size(self) -> int:
        return self.vocabulary.size

    @property
    def thinking_key(self) -> str:
        return self.profile.template.switch

    @property
    def end_ids(self) -> frozenset[int]:
        """Every id that may end an answer; the first of the profile is the usual one."""
        return frozenset(self.rebuilder.ends)

    @property
    def bos_id(self) -> int | None:
        """The id every prompt begins with, None where the template has no such token."""
        return self.vocabulary.added[self.profile.bos] if self.profile.bos else None

    def prompt_ids(
        self, messages: Messages, tools: list[dict[str, Any]] | None = None, thinking: bool | None = None, literal: bool = False
    ) -> Ids:
        """int32[p], up to and including the generation prompt, as an engine sees it: rendered to text, then encoded.

        An engine takes marker text typed by a user for the marker itself. `literal` keeps it text, which is what the
        user meant and not what an engine was given. ProfileError when the template refuses the messages.
        """
        if not literal:
            return np.asarray(self.vocabulary.encode(render(self.profile, self._template, messages, tools, thinking)), np.int32)
        rendered = render(self.profile, self._template, self._shielded(messages), self._shielded(tools), thinking)
        ids: list[int] = []
        at = 0
        for found in [*self.vocabulary.marker.finditer(rendered), None]:
            ids += self.vocabulary.encode_ordinary(rendered[at:found.start() if found else None].replace(SHIELD, ""))
            if found:
                ids.append(self.vocabulary.added[found.group()])
                at = found.end()
        return np.asarray(ids, np.int32)

    def whole_ids(
        self, messages: Messages, tools: list[dict[str, Any]] | None = None, thinking: bool | None = None
    ) -> Ids | None:
        """int32[n] of a finished conversation as a trainer renders and tokenises it; None where the template refuses it."""
        try:
            text = render(self.profile, self._template, messages, tools, thinking, generate=False)
        except ProfileError:
            return None
        return np.asarray(self.vocabulary.encode(text), np.int32)

    @property
    def template_sha256(self) -> str:
        return hashlib.sha256(self._template.encode()).hexdigest()

    def holds_marker(self, value: Any) -> bool:
        """Whether any string in messages or tools spells a marker, which an engine would take for the real one."""
        if isinstance(value, str):
            return self.vocabulary.marker.search(value) is not None
        items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        return any(self.holds_marker(item) for item in items)

    def _shielded(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.vocabulary.marker.sub(lambda m: m.group()[0] + SHIELD + m.group()[1:], value)
        if isinstance(value, dict):
            return {k: self._shielded(v) for k, v in value.items()}
        return [self._shielded(v) for v in value] if isinstance(value, list) else value

    def decode(self, ids: Ids | Sequence[int]) -> bytes:
        """The bytes of the ids, markers as their text; b"" for ids that have none. IndexError outside the vocabulary."""
        return self.vocabulary.decode(ids.tolist() if isinstance(ids, np.ndarray) else ids)

    def row(self, answer: Answer, prompt_ids: Ids, *, convention: Convention | None = None, truncated: bool = False) -> Row:
        """The answer's ids and grade. A convention learned with another version of the profile is not used."""
        usable = convention if convention is not None and convention.model == self.version else None
        return grade(self.rebuilder, answer, answer.prompt_ids if answer.prompt_ids is not None else prompt_ids,
                     usable, truncated, self.version_with(usable))

    def version_with(self, convention: Convention | None) -> str:
        """What `Row.version` says: rows with another version may be graded differently now."""
        return f"{self.version}+{convention.version}" if convention is not None else self.version

    def learn(self, samples: Sequence[Sample], true_rows: Iterable[Row] = ()) -> dict[str, Convention]:
        """Conventions of one provider, by finish reason.

        samples: answers of this provider, any finish reason; about 100 are enough, short ones are the better witnesses.
        true_rows: rows of the same model graded engine or logprobs, from any provider.
        """
        usable = sorted((s for s in samples if not refusal(s.answer)), key=lambda s: s.answer.usage.completion_tokens or 0)
        edges = calibrate.learn_edges(self._seen(usable), self._true(true_rows))
        prompt = calibrate.learn_prompt(s.answer.usage.prompt_tokens - len(s.prompt_ids) for s in usable
                                        if s.answer.usage.prompt_tokens is not None)
        offsets = calibrate.learn_offsets([self._delta(sample, edges) for sample in usable])
        return {finish: Convention(self.version, edges, offsets, prompt) for finish in sorted(FINISHED)}

    def _seen(self, samples: Iterable[Sample]) -> Seen:
        seen: dict[str, Counter[str]] = defaultdict(Counter)
        for s in samples:
            parts = part(s.answer, self.profile, self.vocabulary, s.truncated)
            for name, space in edges_of(parts, s.truncated, self.rebuilder.inside(s.prompt_ids)).items():
                seen[name][space] += 1
        return seen

    def _true(self, rows: Iterable[Row]) -> Seen:
        true: dict[str, Counter[str]] = defaultdict(Counter)
        for row in rows:
            for name, space in self._true_edges(row).items():
                true[name][space] += 1
        return true

    def _true_edges(self, row: Row) -> dict[str, str]:
        spans = {s.kind: s for s in row.spans}
        text = {k: self.decode(row.completion_ids[s.start:s.end]).decode("utf-8", "replace") for k, s in spans.items()}
        thought, content, ended = text.get("reasoning"), text.get("content"), "stop" in spans
        found: dict[str, str] = {}
        closed = thought is not None and any(s.kind == "marker" and s.start >= spans["reasoning"].end for s in row.spans)
        if thought and thought.strip():
            found["think_lead"] = found["inline_lead"] = lead_of(thought)
            found["think_tail" if closed else "think_cut"] = tail_of(thought)
        if content and content.strip():
            marked = "marker" in spans
            found["content_lead" if marked else "plain_lead"] = lead_of(content)
            found["tools_gap" if "tools" in spans else "content_tail" if ended else "content_cut"] = tail_of(content)
        return found

    def _delta(self, sample: Sample, edges: dict[str, Edge]) -> tuple[str, int, bool]:
        parts = part(sample.answer, self.profile, self.vocabulary, sample.truncated)
        inside = self.rebuilder.inside(sample.prompt_ids)
        names = edges_of(parts, sample.truncated, inside)
        settled = all(edges[n].settled for n in names) and not parts.trimmed
        one = Convention(self.version, {n: Edge("raw", edges[n].options[:1] if edges[n].settled else ("",)) for n in names})
        first = listing(self.rebuilder, parts, inside, sample.truncated, one, sample.prompt_ids)[0]
        return first.shape, (sample.answer.usage.completion_tokens or 0) - len(first.ids), settled
