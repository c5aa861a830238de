"""A worker's heartbeat, from a thread of its own: a query takes an event loop some turns, and with thousands of calls on a
busy machine a turn may take seconds. Only a loop that lives is vouched for, or nobody would take over from one that hangs.
"""

import threading
from collections.abc import Callable
from time import monotonic

import structlog
from sqlalchemy import Connection

from models.base import connect, transaction
from models.errors import StoreError

log = structlog.get_logger()
HANGS_AFTER_S = 60.0


class Heartbeat:
    """beat: writes it; False when the worker was declared dead, of which `dead` is told. Both are called in the thread."""

    def __init__(self, database_url: str, every_s: float, beat: Callable[[Connection], bool], dead: Callable[[], None]) -> None:
        self._engine, self._every_s, self._beat, self._dead = connect(database_url, size=1), every_s, beat, dead
        self._lived_at, self._over = monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def lives(self) -> None:
        """For the loop to say."""
        self._lived_at = monotonic()

    def stop(self) -> None:
        """Waits for a beat that is under way."""
        self._over.set()
        self._thread.join(10)
        self._engine.dispose()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            if monotonic() - self._lived_at > HANGS_AFTER_S:
                log.error("event_loop_hangs", seconds=round(monotonic() - self._lived_at))
                continue
            try:
                with transaction(self._engine) as connection:
                    known = self._beat(connection)
            except StoreError as error:
                log.warning("duty_failed", cause=str(error))
                continue
            if not known:
                self._dead()
