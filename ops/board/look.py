"""Asking the store for a page: off the loop, each question in a transaction of its own, under a deadline."""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from models.base import connect, transaction
from models.errors import DraftmillError, StoreAway

log = logging.getLogger(__name__)
DEADLINE_S = 8.0
FRESH_S = 1.0            # several people looking at once ask the database once
THREADS = 4
Verb = Callable[[Connection], Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a part of a page cannot be shown: no statement, no parameter, no address."""

    text: str


class Look:
    """Questions are named; those of one name and the same arguments share an answer for a second."""

    def __init__(self, url: str, deadline_s: float = DEADLINE_S) -> None:
        self.engine = connect(url, size=THREADS)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="board")
        self._deadline_s = deadline_s
        self._known: dict[tuple[Any, ...], tuple[float, asyncio.Future[Any]]] = {}

    async def ask(self, *key: Any, verb: Verb) -> Any:
        """The verb's answer or a Problem; never raises."""
        now = time.monotonic()
        begun, answer = self._known.get(key, (0.0, None))
        if answer is None or (now - begun > FRESH_S and answer.done()):
            answer = asyncio.ensure_future(self._asked(key, verb))
            self._known = {k: v for k, v in self._known.items() if now - v[0] < 60}
            self._known[key] = (now, answer)
        return await asyncio.shield(answer)

    async def _asked(self, key: tuple[Any, ...], verb: Verb) -> Any:
        try:
            return await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(self._threads, self._run, verb),
                                          self._deadline_s)
        except StoreAway as error:
            log.warning("board: %s: %s", key[0], error)
            return Problem("The database cannot be reached, or took too long. This page tries again by itself.")
        except TimeoutError:
            return Problem(f"The database took longer than {self._deadline_s:.0f} s. This page tries again by itself.")
        except DraftmillError as error:
            log.warning("board: %s: %s", key[0], error)
            return Problem(str(error))
        except Exception as error:  # noqa: BLE001  (a page must not end, nor print what an error may hold)
            log.error("board: %s: %s", key[0], type(error).__name__)
            return Problem(f"This part cannot be shown ({type(error).__name__}); the log of Flower says when it happened.")

    def _run(self, verb: Verb) -> Any:
        with transaction(self.engine) as connection:
            connection.execute(text("select set_config('statement_timeout', :p_ms, true)"),
                               {"p_ms": str(int(self._deadline_s * 1000))})
            return verb(connection)

    async def act(self, action: Callable[[], Any]) -> Any:
        """Something that changes the store; errors of ours are raised."""
        self._known.clear()
        return await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(self._threads, action), 60)

    def close(self) -> None:
        self._threads.shutdown(wait=False)
        self.engine.dispose()
