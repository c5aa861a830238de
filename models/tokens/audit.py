"""How honest the grades are: rows whose ids are known are graded again without them, and compared.

What no text-only row can show by itself is estimated: a non-canonical split of tokens changes the count and is seen as
`drift`; a shift (same text, same count, other tokens) is silent. Their ratio is a property of the vocabulary.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import sqrt

import numpy as np

from models.answer import Answer
from models.states import Grade
from models.tokens.model import Model, Sample
from models.tokens.replay import STYLES, Style, replay
from models.tokens.row import Row

# Same-count rows per row with another count, among non-canonical rows. The bench measures 0.04 with Kimi's vocabulary and holds
# this above what it finds: an estimate of what nobody sees must not be too small.
SHIFTS_PER_SPLIT = 0.20
COUNTED = "the count differs"


@dataclass(frozen=True, slots=True)
class Share:
    """exact of rows, with Wilson's 95% interval."""

    exact: int
    rows: int

    @property
    def share(self) -> float:
        return self.exact / self.rows if self.rows else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.exact, self.rows)


def wilson(hits: int, rows: int, z: float = 1.96) -> tuple[float, float]:
    if not rows:
        return 0.0, 1.0
    p, d = hits / rows, 1 + z * z / rows
    middle, reach = (p + z * z / (2 * rows)) / d, z / d * sqrt(p * (1 - p) / rows + z * z / (4 * rows * rows))
    return max(0.0, middle - reach), min(1.0, middle + reach)


@dataclass
class Tally:
    """One provider's replayed rows. overrated: inexact, with another count than the truth, and yet above `drift`: always 0."""

    style: str
    rows: Counter[Grade] = field(default_factory=Counter)
    exact: Counter[Grade] = field(default_factory=Counter)
    overrated: int = 0

    def add(self, found: Row, true: Row) -> None:
        same = np.array_equal(found.completion_ids, true.completion_ids)
        self.rows[found.grade] += 1
        self.exact[found.grade] += same
        self.overrated += not same and len(found.completion_ids) != len(true.completion_ids) and found.grade > Grade.DRIFT

    def share(self, grade: Grade) -> Share:
        return Share(self.exact[grade], self.rows[grade])


def audit(model: Model, rows: Sequence[Row], styles: Iterable[Style] = STYLES, calibrated_by: int = 800) -> list[Tally]:
    """rows: engine- or logprobs-graded, of this model. Each style learns its convention from the first `calibrated_by`."""
    return [_audited(model, rows, style, calibrated_by) for style in styles]


def _audited(model: Model, rows: Sequence[Row], style: Style, calibrated_by: int) -> Tally:
    cut = [bool(row.spans) and row.spans[-1].kind != "stop" for row in rows]
    answers = [replay(model.rebuilder, row, short, style) for row, short in zip(rows, cut, strict=True)]
    samples = [Sample(a, r.prompt_ids, c) for a, r, c in zip(answers, rows, cut, strict=True)]
    conventions = model.learn(samples[:calibrated_by], rows[:calibrated_by] if style.known else ())
    tally = Tally(style.name)
    for sample, row in zip(samples, rows, strict=True):
        convention = conventions[sample.answer.finish_reason]
        tally.add(model.row(sample.answer, row.prompt_ids, convention=convention, truncated=sample.truncated), row)
    return tally


@dataclass(frozen=True, slots=True)
class Silent:
    """Of a provider's verified rows, the share that is inexact and cannot be seen, estimated from its drift rows."""

    drift: int
    verified: int
    share: float
    low: float
    high: float


def silent(rows: Iterable[Row], ratio: float = SHIFTS_PER_SPLIT) -> Silent:
    """rows: one provider's. Only drift that a settled count found is evidence; uncalibrated and cut rows are none."""
    drift = verified = 0
    for row in rows:
        drift += row.grade in (Grade.DRIFT, Grade.REJECTED) and row.reason.startswith(COUNTED)
        verified += row.grade == Grade.VERIFIED
    low, high = wilson(drift, drift + verified)
    return Silent(drift, verified, *(_silent_share(p, ratio) for p in (drift / max(1, drift + verified), low, high)))


def _silent_share(split: float, ratio: float) -> float:
    """splits are `split` of all rows; shifts are `ratio` times as many, found among the rows that are left."""
    return min(1.0, ratio * split / max(1e-9, 1 - split))


@dataclass
class Report:
    """What `draftmill verify` says of a dataset: grades, problems, tokens kept against tokens billed, by provider."""

    grades: Counter[Grade] = field(default_factory=Counter)
    problems: Counter[str] = field(default_factory=Counter)
    kept: Counter[str] = field(default_factory=Counter)
    billed: Counter[str] = field(default_factory=Counter)
    mismatched: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)

    def add(self, row: Row, answer: Answer, problems: Iterable[str]) -> None:
        found = list(problems)
        self.grades[row.grade] += 1
        self.problems.update(found)
        self.rows[answer.provider] += 1
        self.mismatched[answer.provider] += bool(found) or bool(row.delta)
        if answer.usage.completion_tokens is not None:
            self.kept[answer.provider] += len(row.completion_ids)
            self.billed[answer.provider] += answer.usage.completion_tokens

    @property
    def drift_percent(self) -> float:
        """Billed minus kept completion tokens, in percent of the bill."""
        billed = self.billed.total()
        return 100 * (billed - self.kept.total()) / billed if billed else 0.0
