"""Hints are kept to a window: a queue of a million samples is a few thousand messages in Redis.

The producer fills the window after its commit, the reaper refills it, and that is also how Redis is rebuilt after a loss.
"""

from sqlalchemy.ext.asyncio import AsyncEngine

from models.base import perform
from models.hint import Hints, queue_of
from models.states import Lane
from models.store import samples
from models.store.datasets import Dataset

WAITING_STALE_S = 3_600.0
SPARE = 16     # hints beyond the room in a budget: answers in flight will give some back


async def top_up(engine: AsyncEngine, hints: Hints, datasets: list[Dataset], window: int) -> int:
    """Send hints for due samples of these open datasets up to `window` per queue, or as many as its budget has room for.

    A queue is filled when it is below half of that, so that a sweep writes batches rather than drops. How many were sent.
    """
    queues = {queue_of(lane, d.name): (d, lane) for d in datasets for lane in Lane}
    sent = 0
    for queue, length in (await hints.lengths(queues)).items():
        dataset, lane = queues[queue]
        target = window if dataset.room is None else min(window, dataset.room[lane] + SPARE)
        if length * 2 > target:
            continue
        # While hints wait in the queue an old one is most likely among them; once it is empty, what is old was lost.
        stale_s = samples.HINT_STALE_S if length == 0 else WAITING_STALE_S
        ids = await perform(engine, samples.hintable, dataset.id, lane, target - length, stale_s)
        if ids:
            await hints.send(queue, dataset.name, lane, ids)
            sent += len(ids)
    return sent
