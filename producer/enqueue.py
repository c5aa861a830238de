"""Prompt files -> samples in PostgreSQL -> hints in Redis. Commits first, hints after.

Reading streams and each batch is one statement, so that a gigabyte needs no more memory than a kilobyte. Keys make a
second reading add nothing, and two producers on the same files add each row once.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine

from models import blob
from models.base import perform
from models.conversation import answer_id, turn_key
from models.errors import BrokerAway
from models.hint import Hints
from models.plan import DatasetPlan
from models.states import DatasetState
from models.store import datasets, prompts, samples
from models.store.samples import NewSample
from models.window import top_up
from producer.gate import Gate
from producer.lanes import lane_of, max_tokens_of
from producer.prompts import Prompt, Refusal, Rejects, Seen, read

BATCH = 500


@dataclass(slots=True)
class Enqueued:
    """prompts read; rows: samples made of them, of which new; refused: by code, written to `rejects` when there are any.

    skipped: why nothing was read (a closed dataset).
    """

    dataset: str
    prompts: int = 0
    rows: int = 0
    new: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    rejects: Path | None = None
    skipped: str | None = None

    def __str__(self) -> str:
        """One line for people."""
        if self.skipped:
            return f"{self.dataset}: skipped, closed: {self.skipped}"
        counts = ", ".join(f"{code} {n}" for code, n in self.refused.most_common())
        refused = f", {self.refused.total()} refused ({counts}; see {self.rejects})" if self.rejects else ""
        return f"{self.dataset}: {self.rows} prompts, {self.new} new{refused}"


def _samples(prompt: Prompt, plan: DatasetPlan) -> Iterator[NewSample]:
    """One for each answer that is wanted."""
    max_tokens = max_tokens_of(prompt, plan) if prompt.max_tokens is not None else None
    lane, document = lane_of(prompt, plan), blob.pack_json(prompt.document())
    for n in range(plan.answers):
        primary_id = answer_id(prompt.primary_id, n)
        key = turn_key(primary_id, 0) if plan.turns == "all" else primary_id
        yield NewSample(key, primary_id, 0, lane, max_tokens, document)


def _accepted(found: Iterable[Prompt | Refusal], file: Path, gate: Gate, rejects: Rejects) -> Iterator[Prompt]:
    for item in found:
        refusal = item if isinstance(item, Refusal) else gate.refusal(str(file), item)
        if refusal is not None:
            rejects.write(refusal)
        elif isinstance(item, Prompt):
            yield item


async def _told(gate: Gate, engine: AsyncEngine, dataset_id: int, rejects: Rejects) -> None:
    """The gate knows the reference prompts and what the dataset holds, so that a second reading changes nothing."""
    for refusal in gate.learn():
        rejects.write(refusal)
    after = 0
    while gate.remembers and (page := await perform(engine, prompts.page, dataset_id, after)):
        for sample in page:
            gate.known(sample)
        after = page[-1].id


async def enqueue(engine: AsyncEngine, dataset_id: int, name: str, plan: DatasetPlan, files: Sequence[Path], rejects: Path,
                  markers: Sequence[str] = (), every: int = 1, home: Path | None = None) -> Enqueued:
    """Add every good row of `files` to the dataset. Bad rows are refused with file, line and cause; the rest goes on.

    every: take one prompt in so many only. home: as in Gate. The result's rows are samples: prompts times answers.
    """
    result, seen = Enqueued(name), Seen()
    with Rejects(rejects) as refused, Gate(plan, home) as gate:
        await _told(gate, engine, dataset_id, refused)
        for file in files:
            accepted = _accepted(read(file, turns=plan.turns, markers=markers, seen=seen), file, gate, refused)
            while batch := list(islice(accepted, max(1, BATCH // plan.answers))):
                rows = [s for n, p in enumerate(batch, result.prompts) if n % every == 0 for s in _samples(p, plan)]
                result.prompts += len(batch)
                result.rows += len(rows)
                result.new += await perform(engine, samples.add, dataset_id, rows)
                await asyncio.sleep(0)
        result.refused = refused.codes
        result.rejects = rejects if refused.total else None
    return result


async def hint(engine: AsyncEngine, hints: Hints, names: Iterable[str], window: int) -> int:
    """Fill the windows of the named open datasets; a broker that is away costs nothing but the reaper's next round."""
    wanted = set(names)
    known = [d for d in await perform(engine, datasets.every) if d.name in wanted and d.state is DatasetState.OPEN]
    try:
        return await top_up(engine, hints, known, window)
    except BrokerAway:
        return 0
