"""What an export holds, counted while it is written; memory grows with distinct values only."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from models.states import Grade
from producer.rows import ExportRow
from producer.shards import Shard

PERCENTILES = (50, 90, 99, 100)


@dataclass(slots=True)
class Tally:
    """tokens: of whole rows; supervised: those the mask covers, of cut rows too. cost_nusd is of the rows taken.

    timed: also count supervised tokens and cost per minute, by the time of the answer (`2026-12-01T10:30`, UTC).
    """

    splits: Counter[str] = field(default_factory=Counter)
    datasets: Counter[str] = field(default_factory=Counter)
    grades: Counter[str] = field(default_factory=Counter)
    finish_reasons: Counter[str] = field(default_factory=Counter)
    providers: Counter[str] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)
    fingerprints: Counter[str] = field(default_factory=Counter)
    grades_of_provider: Counter[tuple[str, str]] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    supervised: int = 0
    cut: int = 0
    cost_nusd: int = 0
    timed: bool = False
    minutes: Counter[str] = field(default_factory=Counter)
    minutes_nusd: Counter[str] = field(default_factory=Counter)
    _labels: Counter[tuple[str, str, Grade, str, str, str, str, str]] = field(default_factory=Counter)

    @property
    def rows(self) -> int:
        return self.splits.total()

    def add(self, row: ExportRow, split: str, covered: int) -> None:
        """Labels are counted together, and each for itself by `settle`: one counter instead of eight per row."""
        length = row.length
        self._labels[split, row.dataset, row.grade, row.finish_reason, row.provider, row.quantization, row.model,
                     row.fingerprint] += 1
        self.lengths[length] += 1
        self.tokens += length
        self.supervised += covered
        self.cut += row.cut
        nusd = round(row.cost_usd * 1e9)    # whole numbers add up to the same sum in any order
        self.cost_nusd += nusd
        if self.timed and row.created_at:
            minute = datetime.fromisoformat(row.created_at).astimezone(UTC).isoformat()[:16]
            self.minutes[minute] += covered
            self.minutes_nusd[minute] += nusd

    def settle(self) -> None:
        """Bring the counters of labels up to date."""
        for (split, dataset, grade, finish, provider, quantization, model, fingerprint), n in self._labels.items():
            served = f"{provider or 'unnamed'} ({quantization or 'unknown'})"
            self.splits[split] += n
            self.datasets[dataset] += n
            self.grades[grade.label] += n
            self.finish_reasons[finish or "none"] += n
            self.providers[served] += n
            self.models[model] += n
            self.fingerprints[fingerprint] += n
            self.grades_of_provider[served, grade.label] += n
        self._labels.clear()

    def percentiles(self) -> dict[str, int]:
        """Lengths of whole rows: the smallest that so many percent of the rows do not pass."""
        found, seen = {}, 0
        ordered = sorted(self.lengths.items())
        for percent in PERCENTILES:
            wanted = -(-self.rows * percent // 100)
            while ordered and seen < wanted:
                seen += ordered[0][1]
                last = ordered.pop(0)[0]
            found["max" if percent == 100 else f"p{percent}"] = last
        return found


@dataclass(frozen=True, slots=True)
class Summary:
    """rates: per chat dialect, how the rows that were tried came through its render (`survival`). coverage: per draft size."""

    tally: Tally
    shards: tuple[Shard, ...]
    rates: Mapping[str, Counter[str]]
    chat_left_out: Mapping[str, Mapping[str, int]]
    coverage: Mapping[int, float]
    facts: Mapping[str, Any]
    settings: Mapping[str, Any]
    vocabulary_size: int
    hidden_bytes_per_token: int | None

    @property
    def rows(self) -> int:
        return self.tally.rows

    @property
    def longest(self) -> int:
        return max(self.tally.lengths)
