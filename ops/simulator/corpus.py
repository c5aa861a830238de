"""One long text, rendered once, from which every answer is a slice: an answer of 20 KB costs a few copies of memory."""

import json
import random
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate

from ops.simulator.words import stream

SIZE = 32_768
FIRST_ID = 1_000             # synthetic ids: FIRST_ID + the rank of the piece
Encode = Callable[[str], Sequence[int]]


class Corpus:
    """`SIZE` tokens in a ring. `pieces[i]` is the text of token i and `ids[i]` its id; slices wrap around.

    Exact in both directions: a slice of n tokens is n pieces, and (with a real tokenizer) encodes to the n ids again.
    """

    def __init__(self, pieces: Sequence[str], ids: Sequence[int], think_end: int, end: int) -> None:
        self.pieces, self.ids = tuple(pieces), array("i", ids)
        self.think_end, self.end = think_end, end
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


@lru_cache(maxsize=4)
def synthetic(seed: int) -> Corpus:
    """The corpus under the simulator's own rule: one piece, one token. Ids are synthetic, 1 and 2 end thought and answer."""
    draw = random.Random(seed)
    pieces: list[str] = []
    while len(pieces) < SIZE:
        pieces += stream(draw)
    pieces = pieces[:SIZE]
    rank = {piece: FIRST_ID + i for i, piece in enumerate(sorted(set(pieces)))}
    return Corpus(pieces, [rank[piece] for piece in pieces], think_end=1, end=2)
