"""Which rows an export takes, and for what reason it leaves one out."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import numpy as np

from models.blob import Ids
from models.conversation import question_of
from models.states import Grade
from producer.rows import ExportRow

CUT_FLAGS = frozenset({"truncated", "no_answer", "continued"})  # what a cut row bears for having been cut, and nothing worse


@dataclass(frozen=True, slots=True)
class Selection:
    """None means any. lengths count all tokens of a row. metadata: a regular expression per field, searched in its text.

    val_share: the share of conversations, chosen by the hash of their id, that go to the split `val`.
    """

    min_grade: Grade = Grade.VERIFIED
    providers: frozenset[str] | None = None
    quantizations: frozenset[str] | None = None
    finish_reasons: frozenset[str] | None = None
    without_flags: frozenset[str] = frozenset()
    min_length: int = 1
    max_length: int | None = None
    metadata: Mapping[str, re.Pattern[str]] = field(default_factory=dict)
    val_share: float = 0.05

    def split(self, primary_id: str) -> str:
        question = question_of(primary_id) if "#a" in primary_id else primary_id
        point = int.from_bytes(sha256(question.encode()).digest()[:8]) / 2**64
        return "val" if point < self.val_share else "train"

    def unwanted(self, row: ExportRow) -> str | None:
        """The filter that leaves this row out, or None."""
        if row.grade < self.min_grade:
            return "grade"
        if not row.trainable and not (row.cut and row.flags <= CUT_FLAGS):
            return "not_trainable"
        if self.providers is not None and row.provider not in self.providers:
            return "provider"
        if self.quantizations is not None and row.quantization not in self.quantizations:
            return "quantization"
        if self.finish_reasons is not None and row.finish_reason not in self.finish_reasons:
            return "finish_reason"
        if self.without_flags and self.without_flags & row.flags:
            return "flags"
        if row.length < self.min_length or (self.max_length is not None and row.length > self.max_length):
            return "length"
        return "metadata" if self.metadata and not self._described(row) else None

    def _described(self, row: ExportRow) -> bool:
        return all(name in row.metadata and pattern.search(str(row.metadata[name]))
                   for name, pattern in self.metadata.items())


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What an export must know of the model. decode: ids to text, as one string; bos_id, end_ids: None or empty if unknown."""

    size: int
    bos_id: int | None = None
    end_ids: frozenset[int] = frozenset()
    decode: Callable[[Ids], str] | None = None


def all_known(rows: Sequence[ExportRow], size: int) -> bool:
    """Whether every id of all these rows is one of the vocabulary: one look at many rows costs hardly more than at one."""
    return known(np.concatenate([ids for row in rows for ids in (row.prompt_ids, row.completion_ids)]), size)


def unsound(row: ExportRow, vocabulary: Vocabulary, checked: bool = False) -> str | None:
    """What makes these ids no training row whatever the filters say, or None. checked: its ids are in the vocabulary."""
    prompt, completion = row.prompt_ids, row.completion_ids
    if not len(prompt):
        return "no_prompt_ids"
    if not len(completion):
        return "nothing_supervised"
    if not checked and not (known(prompt, vocabulary.size) and known(completion, vocabulary.size)):
        return "id_out_of_vocabulary"
    if vocabulary.bos_id is not None and len(prompt) > 1 and prompt[0] == prompt[1] == vocabulary.bos_id:
        return "double_bos"
    if row.cut and (int(completion[-1]) in vocabulary.end_ids or (row.spans and row.spans[-1].kind == "stop")):
        return "closed_though_cut"
    if row.spans and row.spans[-1].end != len(completion):
        return "spans_do_not_fit"
    return None


def known(ids: Ids, size: int) -> bool:
    # As unsigned numbers, negative ids are too large as well: one comparison for both ends.
    return not len(ids) or int(np.maximum.reduce(ids.view(np.uint32))) < size


def end_tokens(row: ExportRow, vocabulary: Vocabulary) -> int:
    """How many ids at the end are the sampled end of the turn (0 or more)."""
    if row.spans and row.spans[-1].kind == "stop":
        return row.spans[-1].end - row.spans[-1].start
    return int(int(row.completion_ids[-1]) in vocabulary.end_ids)
