"""The supervisor: the processes of one home, started together, restarted when they die, ended together.

    home/run/stack/NAME.pid, home/logs/NAME.log, home/stack.lock

Call `start`, `poll` (every second or so) and `stop` from a thread that lives as long as the process: the kernel ends the
children when that thread ends, so that a killed supervisor leaves nothing behind.
"""

import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from models.errors import ServiceError
from ops import lock
from ops.process import Command, Process, bound_log, end_orphan, last_line

STEADY_S = 30.0             # who lived so long has started well, and is restarted at once
# Doubled at each early death in a row, up to the second, which is shorter than a silent worker takes to be called dead:
# whoever comes back on a machine tells first what the dead one had in hand.
BACKOFF_S = (0.5, 10.0)
LOOP_DEATHS = 5             # early deaths in a row that are called a crash loop


@dataclass(frozen=True, slots=True)
class Child:
    """argv[0] is an absolute path; secrets belong into `env`, where other users cannot see them.

    grace_s: from SIGTERM to SIGKILL. stage: lower ones are started first and ended last (an engine before its clients).
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    grace_s: float = 30.0
    stage: int = 1


@dataclass(frozen=True, slots=True)
class Death:
    """exit_code: negative for a signal. in_a_row: early deaths up to this one. said: the last line of its log."""

    name: str
    exit_code: int
    in_a_row: int
    restart_in_s: float
    said: str

    @property
    def looping(self) -> bool:
        return self.in_a_row >= LOOP_DEATHS


@dataclass
class _Place:
    child: Child
    process: Process | None = None
    started_at: float = 0.0
    due_at: float = 0.0
    early_deaths: int = 0


@dataclass
class Stack:
    home: Path
    children: Sequence[Child]
    _places: list[_Place] = field(default_factory=list)
    _lock: IO[str] | None = None

    def __enter__(self) -> "Stack":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Ends what a killed supervisor left, then starts everything. ServiceError if another one runs this home."""
        for folder in (self.home / "logs", self.home / "run/stack"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if len({child.name for child in self.children}) < len(self.children):
            raise ServiceError(service="stack", cause="has two children of one name")
        with ExitStack() as undo:
            self._lock = lock.hold(self.home / "stack.lock")
            undo.callback(self.stop)
            self._end_orphans()
            self._places = [_Place(child) for child in sorted(self.children, key=lambda child: child.stage)]
            for place in self._places:
                self._spawn(place)
            undo.pop_all()

    def poll(self) -> list[Death]:
        """Who has died since the last call. Starts again whoever is due, and bounds the logs."""
        deaths = [self._bury(place, place.process) for place in self._places if place.process and not place.process.alive()]
        for place in self._places:
            if place.process is None and time.monotonic() >= place.due_at:
                self._spawn(place)
            bound_log(self._log(place.child))
        return deaths

    def looping(self) -> list[str]:
        """Names of children in a crash loop; they are still tried again, at the longest pause."""
        return [place.child.name for place in self._places if place.early_deaths >= LOOP_DEATHS]

    def pids(self) -> dict[str, int]:
        """Of those that run now."""
        return {place.child.name: place.process.pid for place in self._places if place.process and place.process.alive()}

    def stop(self, at_most_s: float = float("inf")) -> None:
        """SIGTERM, at most each child's grace, SIGKILL; stage by stage. A second call does nothing."""
        places, self._places = self._places, []
        for stage in sorted({place.child.stage for place in places}, reverse=True):
            _end([place for place in places if place.child.stage == stage], at_most_s)
        if self._lock:
            self._lock.close()
            self._lock = None

    def _end_orphans(self) -> None:
        # The kernel has sent each its SIGTERM already, so their graces run side by side.
        deadline = time.monotonic() + max((child.grace_s for child in self.children), default=0)
        for file in sorted((self.home / "run/stack").glob("*.pid")):
            end_orphan(file, signal.SIGTERM, max(0.0, deadline - time.monotonic()))

    def _spawn(self, place: _Place) -> None:
        child = place.child
        place.process = Process(Command(child.name, child.argv, child.env, self._log(child),
                                        self.home / f"run/stack/{child.name}.pid"))
        place.started_at = time.monotonic()

    def _bury(self, place: _Place, process: Process) -> Death:
        early = time.monotonic() - place.started_at < STEADY_S
        place.early_deaths = place.early_deaths + 1 if early else 0
        pause_s = min(BACKOFF_S[1], BACKOFF_S[0] * 2 ** (place.early_deaths - 1)) if early else 0.0
        place.process, place.due_at = None, time.monotonic() + pause_s
        return Death(place.child.name, process.reap(0), place.early_deaths, pause_s, last_line(self._log(place.child)))

    def _log(self, child: Child) -> Path:
        return self.home / f"logs/{child.name}.log"


def _end(places: Iterable[_Place], at_most_s: float) -> None:
    running = [(place.child, place.process) for place in places if place.process]
    begun = time.monotonic()
    for _, process in running:
        process.send(signal.SIGTERM)
    for child, process in running:
        process.reap(begun + min(child.grace_s, at_most_s) - time.monotonic())
