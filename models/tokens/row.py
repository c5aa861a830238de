"""One training row: prompt ids, sampled ids, what each span is, and how far the ids can be trusted."""

from dataclasses import dataclass

from models.blob import Ids
from models.states import Grade


@dataclass(frozen=True, slots=True)
class Span:
    """Half-open [start, end) over the completion ids. kind: reasoning | marker | content | tools | stop."""

    kind: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Row:
    """prompt_ids int32[p] + completion_ids int32[n]; spans cover 0..n without gap or overlap.

    candidates: how many distinct id sequences match the billed count (1 for engine and logprobs rows).
    rule: which rule chose among them, "" where nothing was chosen.
    delta: billed completion tokens - len(completion_ids) after calibration; None without a count.
    prompt_delta: billed prompt tokens - len(prompt_ids); None without a count.
    reason: why the row is rejected or drifts, "" otherwise.
    version: profile name + hash of tokenizer, template and rules; a regrade with another version may differ.
    """

    prompt_ids: Ids
    completion_ids: Ids
    spans: tuple[Span, ...]
    grade: Grade
    candidates: int = 1
    rule: str = ""
    delta: int | None = None
    prompt_delta: int | None = None
    reason: str = ""
    version: str = ""
