"""Runs of a completion and their ids."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from models.blob import Ids
from models.tokens.vocabulary import Vocabulary

NO_IDS: Ids = np.empty(0, np.int32)
BETWEEN_WORDS = re.compile("[a-z](?= [a-z])")   # every pre-tokenizer known here cuts there


@dataclass(frozen=True, slots=True)
class Run:
    """One stretch of a completion: a marker's id, or text. parse: marker text in it becomes marker ids."""

    kind: str
    text: str = ""
    marker: int = -1
    parse: bool = False
    lead: str = ""
    tail: str = ""


class Speller:
    """Encodes each text once per answer; white space tried at an edge re-encodes only the words beside it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary, self.known = vocabulary, {"": NO_IDS}
        self.ends = dict[str, tuple[str, str, str] | None]()

    def ids(self, run: Run) -> Ids:
        if run.marker >= 0:
            return np.array([run.marker], np.int32)
        if run.parse:
            return np.concatenate(list(self._parsed(run.lead + run.text + run.tail)))
        if (run.lead or run.tail) and run.text not in self.ends:
            self.ends[run.text] = self._split(run.text)
        split = self.ends.get(run.text) if run.lead or run.tail else None
        if split is None:
            return self.spell(run.lead + run.text + run.tail)
        return np.concatenate([self.spell(run.lead + split[0]), self.spell(split[1]), self.spell(split[2] + run.tail)])

    def spell(self, text: str) -> Ids:
        if text not in self.known:
            self.known[text] = self.vocabulary.spell(text)
        return self.known[text]

    def _parsed(self, text: str) -> Iterator[Ids]:
        at = 0
        for found in self.vocabulary.marker.finditer(text):
            yield self.spell(text[at:found.start()])
            yield np.array([self.vocabulary.added[found.group()]], np.int32)
            at = found.end()
        yield self.spell(text[at:])

    def _split(self, text: str) -> tuple[str, str, str] | None:
        """First words, middle, last words, cut where ids of the whole are those of the parts; None for a short text."""
        first = BETWEEN_WORDS.search(text, 0, 300)
        last = [m.end() for m in BETWEEN_WORDS.finditer(text, len(text) - 300)] if len(text) > 1000 else []
        if not first or not last:
            return None
        parts = text[:first.end()], text[first.end():last[-1]], text[last[-1]:]
        return parts if np.array_equal(np.concatenate([*map(self.spell, parts)]), self.spell(text)) else None
