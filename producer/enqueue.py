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
from models.errors import BrokerAway
from models.hint import Hints
from models.plan import DatasetPlan
from models.states import DatasetState
from models.store import datasets, samples
from models.store.samples import NewSample
from models.window import top_up
from producer.lanes import lane_of, max_tokens_of
from producer.prompts import Prompt, Refusal, Rejects, Seen, read

BATCH = 500


@dataclass(slots=True)
class Enqueued:
    """rows read, of which new samples; refused: by code, written to `rejects` when there are any.

    skipped: why nothing was read (a closed dataset).
    """

    dataset: str
    rows: int = 0
    new: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    rejects: Path | None = None
    skipped: str | None = None


def _sample(prompt: Prompt, plan: DatasetPlan) -> NewSample:
    own = prompt.max_tokens is not None
    return NewSample(prompt.key, prompt.primary_id, 0, lane_of(prompt, plan), max_tokens_of(prompt, plan) if own else None,
                     blob.pack_json(prompt.document()))


def _accepted(found: Iterable[Prompt | Refusal], rejects: Rejects) -> Iterator[Prompt]:
    for item in found:
        if isinstance(item, Refusal):
            rejects.write(item)
        else:
            yield item


async def enqueue(engine: AsyncEngine, dataset_id: int, name: str, plan: DatasetPlan, files: Sequence[Path], rejects: Path,
                  markers: Sequence[str] = ()) -> Enqueued:
    """Add every good row of `files` to the dataset. Bad rows are refused with file, line and cause; the rest goes on."""
    result, seen = Enqueued(name), Seen()
    with Rejects(rejects) as refused:
        for file in files:
            prompts = _accepted(read(file, turns=plan.turns, markers=markers, seen=seen), refused)
            while batch := list(islice(prompts, BATCH)):
                rows = [_sample(p, plan) for p in batch]
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
