"""Every call the simulator was asked for, counted outside the product."""

import json
import os
from collections import Counter, deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

SERIES_S = 3_600             # seconds of the rate series that are kept
COUNTS = ("calls", "finished", "complete", "hung_up", "lost", "paid_after_complete", "prompt_tokens_billed", "tokens_billed")


class Record(NamedTuple):
    """One finished call. Times are Unix seconds. `billed`: a provider would charge it, whether or not the client got it.

    complete: the whole answer was handed to the client. finished: a whole reply (also a refusal) was.
    """

    seq: int
    prompt: int                # digest as a number
    sample: str                # what the client called it (X-Sample-Id or metadata.sample), if it did
    call: int                  # 1 for the first call of this prompt since the last reset
    started: float
    ended: float
    dialect: str
    stream: bool
    max_tokens: int
    status: int
    fault: str
    prompt_tokens: int
    completion_tokens: int
    cost: float
    billed: bool
    finished: bool
    complete: bool
    hung_up: bool
    provider: str
    generation_id: str

    def as_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "prompt": f"{self.prompt:016x}"}


class Ledger:
    """Bounded: details of the first `limit` calls since the last reset; every count goes on beyond it."""

    def __init__(self, limit: int, file: Path | None = None) -> None:
        self._limit = limit
        self._file = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) if file else None
        self.seq = self.open = self.running = 0
        self.reset()

    def reset(self) -> None:
        """Forget what was; calls in flight are booked into the new ledger when they end. `seq` goes on."""
        self.records: list[Record] = []
        self.calls_of: Counter[int] = Counter()
        self._complete_of: Counter[int] = Counter()
        self._paid_of: Counter[int] = Counter()
        self._paid_at: Counter[tuple[int, int]] = Counter()
        self._complete_at: set[tuple[int, int]] = set()
        self._counts: Counter[str] = Counter()
        self._status: Counter[int] = Counter()
        self._fault: Counter[str] = Counter()
        self.cost_usd = 0.0
        self.max_open = self.max_running = 0
        self._series: deque[list[int]] = deque(maxlen=SERIES_S)

    def arrive(self, prompt: int, now: float) -> tuple[int, int]:
        """A call came in: its number in the ledger, and its number among the calls of its prompt."""
        self.seq += 1
        self.calls_of[prompt] += 1
        self.open += 1
        self.max_open = max(self.max_open, self.open)
        self._second(now)[1] += 1
        return self.seq, self.calls_of[prompt]

    def book(self, record: Record) -> None:
        self.open -= 1
        second = self._second(record.ended)
        second[2] += record.complete
        second[3] += record.status >= 400
        self._status[record.status] += 1
        if record.fault:
            self._fault[record.fault] += 1
        counts = self._counts
        counts["calls"] += 1
        counts["finished"] += record.finished
        counts["complete"] += record.complete
        counts["hung_up"] += record.hung_up
        size = (record.prompt, record.max_tokens)
        if record.billed:
            self._paid_of[record.prompt] += 1
            self._paid_at[size] += 1
            counts["lost"] += not record.complete
            counts["paid_after_complete"] += size in self._complete_at
            counts["prompt_tokens_billed"] += record.prompt_tokens
            counts["tokens_billed"] += record.completion_tokens
            self.cost_usd += record.cost
        if record.complete:
            self._complete_of[record.prompt] += 1
            self._complete_at.add(size)
        if len(self.records) < self._limit:
            self.records.append(record)
        if self._file is not None:
            os.write(self._file, _line(record))

    def start_running(self) -> None:
        self.running += 1
        self.max_running = max(self.max_running, self.running)

    def summary(self) -> dict[str, Any]:
        """All counts. lost: billed calls whose answer nobody got. paid_after_complete: billed calls of a prompt and max_tokens
        that had been answered whole before. paid_twice: prompts billed more than once; ..._same_size: with one max_tokens.
        """
        return {
            **{name: self._counts[name] for name in COUNTS},
            "by_status": {str(k): v for k, v in sorted(self._status.items())},
            "by_fault": dict(sorted(self._fault.items())),
            "prompts": len(self.calls_of),
            "prompts_complete": len(self._complete_of),
            "complete_twice": sum(n > 1 for n in self._complete_of.values()),
            "prompts_paid": len(self._paid_of),
            "paid_twice": sum(n > 1 for n in self._paid_of.values()),
            "paid_twice_same_size": sum(n > 1 for n in self._paid_at.values()),
            "cost_usd": self.cost_usd,
            "in_flight": self.open, "max_in_flight": self.max_open,
            "running": self.running, "max_running": self.max_running,
            "dropped": self._counts["calls"] - len(self.records),
        }

    def series(self) -> list[dict[str, int]]:
        """By second (Unix time): calls that came, complete answers, refusals and failures, most in flight."""
        names = ("second", "calls", "complete", "failed", "in_flight")
        return [dict(zip(names, row, strict=True)) for row in self._series]

    def lines(self, after: int = 0) -> Iterator[bytes]:
        """JSON lines of the records from index `after` on."""
        return (_line(record) for record in islice(self.records, after, None))

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _second(self, now: float) -> list[int]:
        at = int(now)
        if not self._series or self._series[-1][0] < at:
            self._series.append([at, 0, 0, 0, self.open])
        last = self._series[-1]
        last[4] = max(last[4], self.open)
        return last


def _line(record: Record) -> bytes:
    return json.dumps(record.as_dict(), separators=(",", ":")).encode() + b"\n"
