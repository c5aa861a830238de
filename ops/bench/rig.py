"""A whole run in a folder of its own, as a person starts it: for flows, chaos and benches.

The command and all it starts are found by the folder in their environment or command line, so that "kill -9 of
everything" means everything.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import redis

from models.settings import SERVICES, environment
from ops import services

TICK_S = 0.2


class Rig:
    """home: the run's folder below `folder`. Its processes must end with `stop` or `kill_everything`."""

    def __init__(self, folder: Path, **env: str) -> None:
        self.folder, self.home, self.out = folder, folder / "home", folder / "out"
        own = {k: v for k, v in environment().items() if not k.startswith("DRAFTMILL_")}
        self.environment = {**own, "DRAFTMILL_HOME": str(self.home), "DRAFTMILL_FLOWER_PORT": "0", **env}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> Path:
        return self.folder / "command.log"

    def plan(self, document: Mapping[str, Any], name: str = "draftmill.toml") -> Path:
        """Write a plan; values as JSON, which TOML reads alike for what a plan holds."""
        path = self.folder / name
        path.write_text("\n".join(_toml(document)), encoding="utf-8")
        return path

    def prompts(self, name: str, rows: Sequence[Mapping[str, Any]]) -> Path:
        path = self.folder / "prompts" / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return path

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "ops", *arguments], cwd=self.folder, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        return self.process

    def command(self, *arguments: str, timeout_s: float = 300) -> tuple[int, str]:
        """Run to its end: (exit code, what it printed)."""
        process = self.start(*arguments)
        at = self.log.stat().st_size
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill_everything()
            raise AssertionError(f"{arguments[0]} did not end within {timeout_s} s:\n{self.tail()}") from None
        return code, self.log.read_bytes()[at:].decode("utf-8", "replace")

    def tail(self, n: int = 3000) -> str:
        return self.log.read_bytes()[-n:].decode("utf-8", "replace") if self.log.exists() else ""

    def stop(self, timeout_s: float = 90) -> None:
        """As Ctrl-C does; as `kill` does where a shell lets its jobs in the background ignore Ctrl-C."""
        if self.process and self.process.poll() is None:
            ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            self.process.send_signal(signal.SIGTERM if ignored else signal.SIGINT)
            self.process.wait(timeout_s)

    def pids(self, *words: str) -> list[int]:
        """Processes of this run; with words, those whose command line holds them all."""
        return [pid for pid in _processes(str(self.home)) if all(w in _command_line(pid) for w in words)]

    def kill_everything(self) -> int:
        """SIGKILL to the command, services, workers and whatever they start meanwhile; how many."""
        killed = 0
        for _ in range(50):
            pids = self.pids()
            if not pids:
                break
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                    killed += 1
                except ProcessLookupError:
                    pass
            time.sleep(0.05)
        if self.process:
            self.process.wait(10)
            self.process = None
        return killed

    def urls(self) -> dict[str, Any]:
        return dict(json.loads((self.home / SERVICES).read_text(encoding="utf-8")))

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Rows of the running database."""
        with psycopg.connect(self.urls()["database_url"].replace("+psycopg", ""), autocommit=True, connect_timeout=5) as c:
            return c.execute(statement.encode(), values or None).fetchall()

    def redis(self) -> redis.Redis:
        return redis.Redis.from_url(self.urls()["redis_url"], socket_timeout=10)

    def wait(self, happened: Callable[[], bool], deadline_s: float = 60, what: str = "") -> float:
        """Seconds until it happened; not answering services count as not yet."""
        begun = time.monotonic()
        while time.monotonic() - begun < deadline_s:
            try:
                if happened():
                    return time.monotonic() - begun
            except (psycopg.Error, redis.RedisError, OSError, ValueError, KeyError):
                pass
            if self.process and self.process.poll() not in (None, 0):
                raise AssertionError(f"the command ended with {self.process.returncode}:\n{self.tail()}")
            time.sleep(TICK_S)
        raise AssertionError(f"not within {deadline_s} s: {what}\n{self.tail()}")

    @contextmanager
    def services(self) -> Iterator[None]:
        """The run's services without the run, to look into its database afterwards."""
        with services.start(self.home):
            yield


def _toml(document: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[str]:
    tables = {k: v for k, v in document.items() if isinstance(v, Mapping)}
    if path:
        yield f"[{'.'.join(json.dumps(p) for p in path)}]"
    for key, value in document.items():
        if key not in tables:
            yield f"{key} = {json.dumps(str(value) if isinstance(value, Path) else value)}"
    for key, table in tables.items():
        yield from _toml(table, (*path, key))


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def _processes(home: str) -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            said = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if home.encode() in said and state != "Z":
            yield int(entry.name)
