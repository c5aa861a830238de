"""One long text, rendered once, from which every answer is a slice: an answer of 20 KB costs a few copies of memory."""

import json
import random
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, islice
from typing import NamedTuple

from ops.simulator.words import stream

SIZE = 32_768
FILLER = "，"                # parts what a tokenizer would join
FIRST_ID = 1_000             # synthetic ids: FIRST_ID + the rank of the piece
Split = Callable[[str], Sequence[str]]
Encode = Callable[[str], Sequence[int]]


class Mark(NamedTuple):
    """One special token: its text, and its id as "12,"."""

    text: bytes
    id: bytes


NO_MARK = Mark(b"", b"")


class Marks(NamedTuple):
    """What ends a turn, and what stands around a thought (NO_MARK: the model does not think aloud)."""

    end: Mark
    open: Mark = NO_MARK
    close: Mark = NO_MARK


def mark(text: str, number: int) -> Mark:
    return Mark(text.encode(), b"%d," % number)


class Corpus:
    """`SIZE` tokens in a ring. `pieces[i]` is the text of token i and `ids[i]` its id; slices wrap around.

    Exact in both directions: a slice of n tokens is n pieces, and (with a real tokenizer) encodes to the n ids again.
    """

    def __init__(self, pieces: Sequence[str], ids: Sequence[int], marks: Marks) -> None:
        self.pieces, self.ids, self.marks = tuple(pieces), array("i", ids), marks
        escaped = [json.dumps(piece, ensure_ascii=False)[1:-1].encode() for piece in pieces]
        numbers = [b"%d," % number for number in ids]
        self._text, self._text_at = b"".join(escaped), _offsets(escaped)
        self._ids, self._ids_at = b"".join(numbers), _offsets(numbers)

    def __len__(self) -> int:
        return len(self.pieces)

    def slice(self, start: int, count: int) -> tuple[bytes, bytes]:
        """`count` tokens from `start` on: their text as the inside of a JSON string (UTF-8), their ids as "1,2,3,"."""
        size, start = len(self.pieces), start % len(self.pieces)
        stop = start + count
        if stop <= size:
            text, ids = self._text_at, self._ids_at
            return self._text[text[start]:text[stop]], self._ids[ids[start]:ids[stop]]
        return _ring(self._text, self._text_at, start, stop), _ring(self._ids, self._ids_at, start, stop)


def _ring(data: bytes, at: "array[int]", start: int, stop: int) -> bytes:
    """From `start` past the end of the ring (perhaps several times) to `stop`."""
    whole, rest = divmod(stop, len(at) - 1)
    return data[at[start]:] + data * (whole - 1) + data[:at[rest]]


def _offsets(parts: Sequence[bytes]) -> "array[int]":
    return array("I", accumulate((len(part) for part in parts), initial=0))


def synthetic(seed: int) -> Corpus:
    """The corpus under the simulator's own rule: one piece, one token. Ids are synthetic; 0 and 1 enclose a thought, 2 ends."""
    pieces = list(islice(_passages(seed), SIZE))
    rank = {piece: FIRST_ID + i for i, piece in enumerate(sorted(set(pieces)))}
    return Corpus(pieces, [rank[piece] for piece in pieces], Marks(mark("", 2), mark("<think>", 0), mark("</think>", 1)))


def tokenized(seed: int, split: Split, encode: Encode, marks: Marks) -> Corpus:
    """The corpus under a tokenizer's rule: only pieces that are one token, and that no neighbour changes.

    Each piece is a pre-token of its own, so every slice splits, and encodes, as the whole does.
    """
    single = lru_cache(None)(lambda piece: len(encode(piece)) == 1)
    apart = lru_cache(None)(lambda left, right: list(split(left + right)) == [left, right])
    pieces: list[str] = [" the"]
    for piece in _passages(seed):
        if not single(piece):
            continue
        if not apart(pieces[-1], piece):
            if not (single(FILLER) and apart(pieces[-1], FILLER) and apart(FILLER, piece)):
                continue
            pieces.append(FILLER)
        pieces.append(piece)
        if len(pieces) >= SIZE and apart(piece, pieces[0]):
            break
    return Corpus(pieces, [encode(piece)[0] for piece in pieces], marks)


def _passages(seed: int) -> Iterator[str]:
    draw = random.Random(seed)
    while True:
        yield from stream(draw)
