"""Answers that were cut at a limit, found again by their last ids when a client asks an engine to continue."""

from array import array
from collections.abc import Sequence

from ops.simulator.answers import Natural, cut
from ops.simulator.corpus import Corpus

TAIL = 16
LIMIT = 200_000


class Prefixes:
    """Answers longer than `TAIL` tokens, the youngest `LIMIT` of them."""

    def __init__(self, corpus: Corpus) -> None:
        self._corpus = corpus
        self._known: dict[bytes, list[tuple[bytes, bytes, Natural, int]]] = {}

    def add(self, digest: bytes, identity: bytes, answer: Natural, count: int) -> None:
        """The first `count` tokens of the answer to `identity` were given."""
        if count < TAIL:
            return
        known = self._known.setdefault(_bytes(self._ids(answer, count - TAIL, TAIL)), [])
        if all(entry[1] != identity or entry[3] != count for entry in known):
            known.append((digest, identity, answer, count))
        if len(self._known) > LIMIT:
            del self._known[next(iter(self._known))]

    def find(self, ids: Sequence[int]) -> tuple[bytes, bytes, Natural, int] | None:
        """Digest and identity of the prompt whose answer these ids end with, the answer, and how many tokens of it they hold."""
        if not isinstance(ids[0], int) or len(ids) < TAIL:
            return None
        for digest, identity, answer, count in self._known.get(_bytes(ids[-TAIL:]), ()):
            begin = len(ids) - count
            if begin >= 0 and list(ids[begin:begin + TAIL]) == self._ids(answer, 0, TAIL):
                return digest, identity, answer, count
        return None

    def _ids(self, answer: Natural, begin: int, count: int) -> list[int]:
        return [int(i) for i in cut(self._corpus, answer, count, begin).ids.split(b",")]


def _bytes(ids: Sequence[int]) -> bytes:
    return array("q", ids).tobytes()
