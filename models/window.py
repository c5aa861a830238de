"""Hints are kept to a window: a queue of a million samples is a few thousand messages in Redis.

The producer fills the window after its commit, the reaper refills it, and that is also how Redis is rebuilt after a loss.
"""

from sqlalchemy.ext.asyncio import AsyncEngine

from models.base import perform
from models.hint import Hints, queue_of
from models.states import Lane
from models.store import samples
from models.store.datasets import Dataset


async def top_up(engine: AsyncEngine, hints: Hints, datasets: list[Dataset], window: int) -> int:
    """Send hints for due samples of these open datasets up to `window` per queue; how many.

    A queue is filled when it is below half of its window, so that a sweep writes batches rather than drops.
    """
    queues = {queue_of(lane, d.name): (d, lane) for d in datasets for lane in Lane}
    sent = 0
    for queue, length in (await hints.lengths(queues)).items():
        if length * 2 > window:
            continue
        dataset, lane = queues[queue]
        ids = await perform(engine, samples.hintable, dataset.id, lane, window - length)
        if ids:
            await hints.send(queue, dataset.name, lane, ids)
            sent += len(ids)
    return sent
