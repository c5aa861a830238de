"""Notices a worker that has free slots and hints waiting, and takes none: a half-open connection, a stuck hub thread.

kombu drops a connection that does not answer a pop within half a minute; this is for whatever that does not cure.
"""

import asyncio
import os
from collections.abc import Callable, Iterable

import structlog

from models.errors import BrokerAway
from models.hint import Hints
from workers.pool import TaskPool

log = structlog.get_logger(__name__)


class Watchdog:
    """Watches on the pool's loop until it has to call `stop`; the supervisor then starts the worker anew.

    deaf_after_s: how long free slots, waiting hints and no hint taken may last. It must exceed the longest pause
    between two attempts to reconnect, 5 s, and kombu's half a minute of above.
    """

    CHECKS = 4

    def __init__(self, hints: Hints, pool: Callable[[], TaskPool], queues: Callable[[], Iterable[str]],
                 stop: Callable[[], None], deaf_after_s: float = 60.0) -> None:
        self._hints, self._pool, self._queues, self._stop = hints, pool, queues, stop
        self._every_s = deaf_after_s / self.CHECKS

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        self._task.cancel()
        await self._hints.close()

    async def _run(self) -> None:
        stalled, taken = 0, -1
        while stalled < self.CHECKS:
            await asyncio.sleep(self._every_s)
            idle = taken == self._pool().taken and self._pool().free > 0
            taken = self._pool().taken
            stalled = stalled + 1 if idle and await self._waiting() else 0
        log.error("deaf", taken=taken, free=self._pool().free)
        self._stop()
        await self._leave()

    async def _waiting(self) -> bool:
        try:
            return any((await self._hints.lengths(self._queues())).values())
        except BrokerAway:
            return False

    async def _leave(self) -> None:
        """A hub thread that is stuck for good never sees the stop."""
        life = self._pool().life
        await asyncio.sleep(life.grace_s + 2 * life.cancel_grace_s + 10)
        os._exit(1)
