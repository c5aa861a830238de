"""What the model says to a prompt: drawn from the prompt alone, then cut at the limit of the request."""

import hashlib
import json
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from ops.simulator.behaviour import Behaviour, Lengths
from ops.simulator.corpus import Corpus

_NORMAL = NormalDist()


def digest(messages: Any) -> bytes:
    """The name of a prompt: the first 8 bytes of SHA-256 over its messages (or ids) as compact JSON with sorted keys."""
    text = json.dumps(messages, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).digest()[:8]


@dataclass(frozen=True, slots=True)
class Natural:
    """An answer as the model would end it: `reasoning` tokens, the end of thought, `content` tokens, the end of the turn."""

    reasoning_at: int
    reasoning: int
    content_at: int
    content: int
    pace: float                # times tokens_per_s
    chance: float              # uniform in [0, 1): for whoever needs one more draw (host, latency)

    @property
    def length(self) -> int:
        return (self.reasoning + 1 if self.reasoning else 0) + self.content + 1


@dataclass(frozen=True, slots=True)
class Cut:
    """Tokens [begin, begin + count) of an answer. JSON-escaped bytes, ready to be sent."""

    reasoning: bytes
    content: bytes
    ids: bytes                 # "1,2,3", what was sampled, the end token included
    count: int
    reasoning_tokens: int
    has_reasoning: bool
    stopped: bool              # False: the limit was hit

    @property
    def finish(self) -> str:
        return "stop" if self.stopped else "length"


def natural(behaviour: Behaviour, identity: bytes, thinking: bool = True, factor: float = 1.0) -> Natural:
    drawn = struct.unpack("<8I", hashlib.blake2b(identity, digest_size=32, person=b"answer").digest())
    u = [(x + 0.5) / 2**32 for x in drawn]
    length = max(2, round(_length(behaviour, u[0], u[1]) * factor))
    share = min(0.9, behaviour.reasoning_share * (0.5 + u[2])) if thinking and length > 3 else 0.0
    reasoning = min(length - 3, max(1, int(length * share))) if share else 0
    return Natural(drawn[3], reasoning, drawn[4], length - 1 - (reasoning + 1 if reasoning else 0),
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
    end = min(answer.length, begin + limit)
    r_from, r_to = min(begin, answer.reasoning), min(end, answer.reasoning)
    head = answer.reasoning + 1 if answer.reasoning else 0
    c_from, c_to = (min(max(at - head, 0), answer.content) for at in (begin, end))
    stopped = end == answer.length
    ids = corpus.json_ids(answer.reasoning_at + r_from, r_to - r_from)
    if head and begin < head <= end:
        ids += b"%d," % corpus.think_end
    ids += corpus.json_ids(answer.content_at + c_from, c_to - c_from)
    if stopped:
        ids += b"%d," % corpus.end
    return Cut(
        reasoning=corpus.json_text(answer.reasoning_at + r_from, r_to - r_from),
        content=corpus.json_text(answer.content_at + c_from, c_to - c_from),
        ids=ids[:-1], count=end - begin, reasoning_tokens=r_to - r_from,
        has_reasoning=r_to > r_from, stopped=stopped)


def prompt_tokens(messages: Any) -> int:
    """A cheap count: about four characters a token, and four tokens of frame for each message. Ids count themselves."""
    if isinstance(messages, Sequence) and messages and isinstance(messages[0], int):
        return len(messages)
    if isinstance(messages, str):
        return len(messages) // 4 + 1
    return sum(4 + len(str(m.get("content", "") if isinstance(m, dict) else m)) // 4 for m in messages) + 3
