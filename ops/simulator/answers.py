"""What the model says to a prompt: drawn from the prompt alone, then cut at the limit of the request."""

import hashlib
import json
import math
import struct
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, NamedTuple

from ops.simulator.behaviour import Behaviour, Lengths
from ops.simulator.corpus import NO_MARK, Corpus

_NORMAL = NormalDist()


def digest(messages: Any) -> bytes:
    """The name of a prompt: the first 8 bytes of SHA-256 over its messages (or ids) as compact JSON with sorted keys."""
    text = json.dumps(messages, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).digest()[:8]


@dataclass(frozen=True, slots=True)
class Natural:
    """An answer as the model would end it: [begin of thought] reasoning, end of thought, content, end of the turn.

    Counts are tokens; each mark is one token. Without reasoning there are no marks of thought.
    """

    opened: int                # 1: the begin of thought is sampled, 0: the prompt holds it
    reasoning_at: int
    reasoning: int
    content_at: int
    content: int
    pace: float                # times tokens_per_s
    chance: float              # uniform in [0, 1): the place within the range of latencies

    @property
    def thought(self) -> int:
        """Tokens up to and without the end of thought."""
        return self.opened + self.reasoning

    @property
    def head(self) -> int:
        """Tokens before the content."""
        return self.thought + 1 if self.reasoning else 0

    @property
    def length(self) -> int:
        return self.head + self.content + 1


class Cut(NamedTuple):
    """A part of an answer. Texts are JSON-escaped bytes, ready to be sent; `sampled` is the text before any parsing."""

    reasoning: bytes
    content: bytes
    sampled: bytes
    ids: bytes                 # "1,2,3", what was sampled, marks and end included
    tokens: int
    reasoning_tokens: int
    stopped: bool              # False: the limit was hit

    @property
    def has_reasoning(self) -> bool:
        return self.reasoning_tokens > 0

    @property
    def finish(self) -> str:
        return "stop" if self.stopped else "length"


def natural(behaviour: Behaviour, identity: bytes, *, thinks: bool = True, opened: bool = False, factor: float = 1.0) -> Natural:
    """thinks: the answer has reasoning. opened: the mark that begins it is sampled too. factor: times the length."""
    drawn = struct.unpack("<8I", hashlib.blake2b(identity, digest_size=32, person=b"answer").digest())
    u = [(x + 0.5) / 2**32 for x in drawn]
    length = max(2, round(_length(behaviour, u[0], u[1]) * factor))
    share = min(0.9, behaviour.reasoning_share * (0.5 + u[2])) if thinks else 0.0
    marks = 2 + opened         # the end of the turn included
    reasoning = max(1, int((length - marks - 1) * share)) if share and length > marks + 1 else 0
    content = length - (marks + reasoning if reasoning else 1)
    return Natural(int(opened and reasoning > 0), drawn[3], reasoning, drawn[4], content,
                   pace=1.25 ** (2 * u[5] - 1), chance=u[6])


def _length(behaviour: Behaviour, kind: float, place: float) -> float:
    low, high = behaviour.min_length, behaviour.max_length
    match behaviour.lengths:
        case Lengths.FIXED:
            return high
        case Lengths.UNIFORM:
            return low + place * (high - low)
        case _ if kind < behaviour.cap_share:
            return high
        case Lengths.LOGNORMAL:
            wanted = behaviour.median_length * math.exp(behaviour.spread * _NORMAL.inv_cdf(place))
        case Lengths.BIMODAL:
            mode = 0.1 if kind < (1 + behaviour.cap_share) / 2 else 0.9
            wanted = low + (high - low) * (mode + 0.05 * _NORMAL.inv_cdf(place))
    return min(high, max(low, wanted))


def cut(corpus: Corpus, answer: Natural, limit: int, begin: int = 0) -> Cut:
    """The answer from token `begin` on, at most `limit` tokens of it."""
    end, head, marks = min(answer.length, begin + limit), answer.head, corpus.marks
    r_at, r = _overlap(begin, end, answer.opened, answer.reasoning)
    c_at, c = _overlap(begin, end, head, answer.content)
    reasoning, reasoning_ids = corpus.slice(answer.reasoning_at + r_at, r)
    content, content_ids = corpus.slice(answer.content_at + c_at, c)
    opens = marks.open if begin < answer.opened <= end else NO_MARK
    closes = marks.close if begin < head <= end else NO_MARK
    stopped = end == answer.length
    return Cut(reasoning, content, opens.text + reasoning + closes.text + content,
               (opens.id + reasoning_ids + closes.id + content_ids + (marks.end.id if stopped else b""))[:-1],
               end - begin, r, stopped)


def _overlap(begin: int, end: int, at: int, count: int) -> tuple[int, int]:
    """Where [begin, end) meets the segment of `count` tokens that begins at `at`: place within the segment, and how many."""
    first, last = max(begin, at), min(end, at + count)
    return max(0, first - at), max(0, last - first)


def prompt_tokens(messages: Any) -> int:
    """A cheap count: about four characters a token, and four tokens of frame for each message."""
    if isinstance(messages, str):
        return len(messages) // 4 + 1
    return sum(4 + len(str(m.get("content", "") if isinstance(m, dict) else m)) // 4 for m in messages) + 3
