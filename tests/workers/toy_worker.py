"""A process of the real worker whose samples only sleep and whose diary says what happened to them.

argv: diary file, file of wanted queues, settings as JSON. What a sample does is told by its dataset's name: `raise` raises,
`hold` never ends, `stubborn` takes a second to accept its cancellation, `block` blocks the loop; all others sleep seconds_each.
"""

import asyncio
import json
import logging
import os
import sys
import time
from pathlib import Path

from celery import current_task
from celery.signals import worker_ready

from models.settings import Settings
from models.states import Lane
from workers.app import run_worker
from workers.pool import Life

DIARY, WANTED, GIVEN = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
_diary = os.open(DIARY, os.O_WRONLY | os.O_APPEND)


def tell(what: str, sample_id: int = 0, dataset: str = "-") -> None:
    os.write(_diary, f"{time.monotonic()} {what} {sample_id} {dataset}\n".encode())


async def generate(sample_id: int, dataset: str, lane: str) -> None:
    tell("began", sample_id, dataset)
    try:
        await act(dataset)
    except asyncio.CancelledError:
        await asyncio.sleep(1.0 if dataset == "stubborn" else 0)
        tell("cancelled", sample_id, dataset)
        raise
    if current_task.request.args[:2] != [sample_id, dataset]:
        tell("confused", sample_id, dataset)
    tell("ended", sample_id, dataset)


async def act(dataset: str) -> None:
    if dataset == "raise":
        tell("ended", 0, dataset)
        raise RuntimeError("as asked")
    if dataset in ("hold", "stubborn"):
        await asyncio.sleep(3_600)
    async with asyncio.timeout(3_600), asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(GIVEN.get("seconds_each", 0.2)))


async def startup() -> None:
    tell("startup")
    if GIVEN.get("startup") == "fail":
        raise RuntimeError("the database is away")


async def wanted_queues() -> set[str]:
    return set(WANTED.read_text().split())


async def shutdown() -> None:
    await asyncio.sleep(0.1)
    tell("shutdown")


def main() -> int:
    worker_ready.connect(lambda **_: tell("ready"), weak=False)
    settings = Settings(redis_url=GIVEN["redis_url"], home=DIARY.parent)
    life = Life(startup=startup, shutdown=shutdown, grace_s=GIVEN.get("grace_s", 20.0), cancel_grace_s=5.0,
                wanted_queues=wanted_queues)
    return run_worker(settings, Lane.SHORT, GIVEN["slots"], GIVEN["name"], generate, life,
                      deaf_after_s=GIVEN.get("deaf_after_s", 60.0))


if __name__ == "__main__":
    logging.basicConfig(level="INFO")
    sys.exit(main())
