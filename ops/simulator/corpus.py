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


class Marks(NamedTuple):
    """Ids and texts around the thought, and the id that ends a turn. None: the model does not think aloud."""

    end: int
    think: tuple[int, int] | None
    texts: tuple[str, str] = ("<think>", "</think>")


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

    def json_text(self, start: int, count: int) -> bytes:
        """`count` tokens from `start` on as the inside of a JSON string, UTF-8."""
        return self._ring(self._text, self._text_at, start, count)

    def json_ids(self, start: int, count: int) -> bytes:
        """Their ids as "1,2,3," (with the last comma)."""
        return self._ring(self._ids, self._ids_at, start, count)

    def text(self, start: int, count: int) -> str:
        size = len(self.pieces)
        return "".join(self.pieces[(start + i) % size] for i in range(count))

    def id_list(self, start: int, count: int) -> list[int]:
        size = len(self.ids)
        return [self.ids[(start + i) % size] for i in range(count)]

    def _ring(self, data: bytes, at: "array[int]", start: int, count: int) -> bytes:
        size = len(self.pieces)
        start %= size
        if start + count <= size:
            return data[at[start]:at[start + count]]
        parts = [data[at[start]:]]
        count -= size - start
        whole, rest = divmod(count, size)
        parts += [data] * whole
        parts.append(data[:at[rest]])
        return b"".join(parts)


def _offsets(parts: Sequence[bytes]) -> "array[int]":
    return array("I", accumulate((len(part) for part in parts), initial=0))


def synthetic(seed: int) -> Corpus:
    """The corpus under the simulator's own rule: one piece, one token. Ids are synthetic; 2 ends a turn, 0 and 1 a thought."""
    pieces = list(islice(_passages(seed), SIZE))
    rank = {piece: FIRST_ID + i for i, piece in enumerate(sorted(set(pieces)))}
    return Corpus(pieces, [rank[piece] for piece in pieces], Marks(end=2, think=(0, 1)))


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
