"""How one provider counts and trims, learned from its replies: what a text needs before a count can verify it.

Two things are unknown of every provider. Which tokens it bills (the end token? the markers?), and which white space of the
sampled text it drops at the edges of its fields. The second is never learned from counts: a dropped "\\n\\n" and an unbilled
end token are both one token. White space is learned from what the texts show, against rows whose ids are known
(`engine`, `logprobs`) of the same model; only then does the modal difference between bill and rebuilt ids mean anything.
"""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

MIN_ROWS, SHARE = 50, 0.95      # settled: this share of at least so many rows
MIN_TRUE, PURE = 100, 0.995     # white space of a model is known: this share of at least so many true rows
MIN_SEEN = 20                   # texts that must lack white space before a provider is said to drop it
FAR = 4                         # a modal difference beyond this is no counting convention
ASSUMED = {"think_tail": ("", "\n", "\n\n", " "), "content_lead": ("", "\n", "\n\n", " ")}
# A field whose start is as sampled has not been trimmed at its end either. Not the other way round: many trim only the start.
IMPLIED = {
    "content_lead": ("content_tail", "content_cut", "plain_lead"), "plain_lead": ("content_tail", "content_cut"),
    "inline_lead": ("content_tail", "content_cut", "think_cut"), "think_lead": ("think_tail", "think_cut"),
    "think_tail": ("think_cut",)}


@dataclass(frozen=True, slots=True)
class Edge:
    """White space at one edge of a field. mode: raw (as sampled) | stripped (put options[0] back) | unknown.

    options: what to add to the text; more than one, or mode unknown: no row with this edge can be verified.
    """

    mode: str = "unknown"
    options: tuple[str, ...] = ("", "\n")

    @property
    def settled(self) -> bool:
        return self.mode != "unknown" and len(self.options) == 1


@dataclass(frozen=True, slots=True)
class Offset:
    """billed - rebuilt, for one shape; share of this modal value among `rows`. basis: counted | implied | assumed | none."""

    delta: int = 0
    rows: int = 0
    share: float = 0.0
    basis: str = "none"

    @property
    def settled(self) -> bool:
        return self.basis in ("counted", "implied")


@dataclass(frozen=True)
class Convention:
    """One provider's convention for one finish reason. A shape is `end` or `cut`, then what an answer holds: `end:think+tools`.

    model: the version of the profile it was learned with; another profile's convention is not used.
    prompt: the same for prompts; a settled delta other than 0 is an injected system prompt or a foreign template.
    """

    model: str
    edges: Mapping[str, Edge] = field(default_factory=dict)
    offsets: Mapping[str, Offset] = field(default_factory=dict)
    prompt: Offset = Offset()

    def edge(self, name: str) -> Edge:
        return self.edges.get(name) or Edge("unknown", ASSUMED.get(name, ("", "\n")))

    def offset(self, shape: str) -> Offset:
        return self.offsets.get(shape, Offset())

    @property
    def settled(self) -> bool:
        """Whether any row can be verified by it."""
        return any(o.settled for o in self.offsets.values())

    @cached_property
    def version(self) -> str:
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:8]

    def to_json(self) -> dict[str, Any]:
        return {"model": self.model, "prompt": asdict(self.prompt), "edges": {k: asdict(v) for k, v in self.edges.items()},
                "offsets": {k: asdict(v) for k, v in self.offsets.items()}}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "Convention":
        return cls(document["model"], {k: Edge(v["mode"], tuple(v["options"])) for k, v in document["edges"].items()},
                   {k: Offset(**v) for k, v in document["offsets"].items()}, Offset(**document["prompt"]))

    def describe(self) -> list[str]:
        """Lines for a person: each shape's offset, each edge's white space."""
        return [f"{shape}: billed - rebuilt = {o.delta:+d} in {o.share:.0%} of {o.rows} rows ({o.basis})"
                for shape, o in sorted(self.offsets.items())] + [
                f"{name}: {edge.mode}" + (f", put back {edge.options[0]!r}" if edge.mode == "stripped" and edge.settled else "")
                for name, edge in sorted(self.edges.items())] + self._of_prompts()

    def _of_prompts(self) -> list[str]:
        p = self.prompt
        if not p.rows:
            return []
        why = "; it adds a prompt of its own, or its template is another one" if p.settled and p.delta else ""
        return [f"prompts: billed - rendered = {p.delta:+d} in {p.share:.0%} of {p.rows} rows{why}"]


Seen = Mapping[str, Counter[str]]      # edge -> white space found there -> rows


def learn_edges(seen: Seen, true: Seen) -> dict[str, Edge]:
    """seen: white space in the provider's texts; true: in what the model sampled, from rows whose ids are known."""
    raw = {name for name, found in seen.items() if any("\n" in space or found[space] > 1 for space in found if space)}
    raw |= {implied for name in raw for implied in IMPLIED.get(name, ())}
    raw |= {implied for name in raw for implied in IMPLIED.get(name, ())}
    return {name: Edge("raw", ("",)) if name in raw else _edge(name, seen.get(name, Counter()), true.get(name, Counter()))
            for name in {*seen, *true, *raw}}


def _edge(name: str, seen: Counter[str], true: Counter[str]) -> Edge:
    rows = true.total()
    if rows < MIN_TRUE:
        return Edge("unknown", ASSUMED.get(name, ("", "\n")))
    usual, count = true.most_common(1)[0]
    # Where a cut falls is chance, whatever the model's habits.
    pure = count >= PURE * rows and not name.endswith("_cut")
    if pure and not usual:
        return Edge("raw", ("",))       # there is nothing to drop
    if pure and not any(seen) and seen.total() >= MIN_SEEN:
        return Edge("stripped", (usual,))
    often = [space for space, n in true.most_common(6) if n >= 0.01 * rows]
    return Edge("unknown", tuple(dict.fromkeys([*often, ""])))


def learn_offsets(deltas: Iterable[tuple[str, int, bool]]) -> dict[str, Offset]:
    """deltas: (shape, billed - rebuilt, whether every edge of the row is settled)."""
    known: dict[str, Counter[int]] = defaultdict(Counter)
    open_: dict[str, Counter[int]] = defaultdict(Counter)
    for shape, delta, settled in deltas:
        (known if settled else open_)[shape][delta] += 1
    offsets = {shape: _counted(found) for shape, found in known.items()}
    for shape, found in open_.items():
        if shape not in offsets or not offsets[shape].settled:
            offsets[shape] = _assumed(shape, found, open_)
    return _implied(offsets, known)


def _counted(found: Counter[int]) -> Offset:
    delta, count = found.most_common(1)[0]
    rows = found.total()
    settled = rows >= MIN_ROWS and count >= SHARE * rows and abs(delta) <= FAR
    return Offset(delta, rows, count / rows, "counted" if settled else "none")


def _assumed(shape: str, found: Counter[int], all_: Mapping[str, Counter[int]]) -> Offset:
    """While white space is open, the end token's bill shows only in the difference between ended and cut answers."""
    delta, count = found.most_common(1)[0]
    rows, share = found.total(), count / found.total()
    other = all_.get(("cut" if shape.startswith("end") else "end") + shape[3:], Counter())
    if other.total() < 10 or rows < 10:
        return Offset(delta, rows, share, "none")
    across = other.most_common(1)[0][0]
    stop = delta - across if shape.startswith("end") else across - delta
    if stop not in (0, -1):
        return Offset(delta, rows, share, "none")
    return Offset(stop if shape.startswith("end") else 0, rows, share, "assumed")


def _implied(offsets: dict[str, Offset], known: Mapping[str, Counter[int]]) -> dict[str, Offset]:
    """Rare shapes follow from common ones: markers that are billed in one are billed in all, and so with the end token."""
    ended = {o.delta for shape, o in offsets.items() if o.basis == "counted" and shape.startswith("end:")}
    marked = 0 in ended or any(shape.startswith("cut:think") and _zero(found) for shape, found in known.items())
    if len(ended) != 1 or not marked or not ended <= {0, -1}:
        return offsets
    stop = ended.pop()
    implied = dict(offsets)
    for start, holds, tools in product(("end", "cut"), ("think", "open", "plain"), ("", "+tools")):
        shape, delta = f"{start}:{holds}{tools}", stop if start == "end" else 0
        old = offsets.get(shape, Offset())
        if not old.settled and (old.rows < 5 or old.delta == delta or shape not in known):
            implied[shape] = Offset(delta, old.rows, old.share, "implied")
    return implied


def _zero(found: Counter[int]) -> bool:
    return found.total() >= 10 and found[0] >= SHARE * found.total()


def learn_prompt(deltas: Iterable[int]) -> Offset:
    """Injected system prompts and foreign templates: the modal billed - rendered prompt tokens, any size."""
    found = Counter(deltas)
    if not found:
        return Offset()
    delta, count = found.most_common(1)[0]
    rows = found.total()
    return Offset(delta, rows, count / rows, "counted" if rows >= MIN_ROWS and count >= SHARE * rows else "none")
