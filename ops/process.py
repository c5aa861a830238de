"""One child process: in its own session, logged to a bounded file, ended with us, else found again by its pid file.

Linux only in two places: the kernel's parent-death signal (`leash`), and /proc, which tells a process from a later one
of the same number.
"""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from models.errors import ServiceError
from ops import leash

LOG_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class User:
    uid: int
    gid: int


def nobody() -> User:
    entry = pwd.getpwnam("nobody")
    return User(entry.pw_uid, entry.pw_gid)


@dataclass(frozen=True, slots=True)
class Command:
    """argv[0] is an absolute path, and argv holds no secret: everybody on the machine can read it.

    orphan_signal: what the kernel sends when the thread that spawned the process ends, so spawn from one that stays.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    log: Path
    pid_file: Path
    cwd: Path | None = None
    user: User | None = None
    orphan_signal: signal.Signals = signal.SIGTERM


class Process:
    def __init__(self, command: Command) -> None:
        self.command = command
        who = command.user or User(-1, -1)
        leashed = [sys.executable, "-I", "-S", leash.__file__, str(int(command.orphan_signal)), str(os.getpid()),
                   str(who.uid), str(who.gid), *command.argv]
        with command.log.open("ab") as log:
            self._popen = subprocess.Popen(leashed, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=command.cwd,
                                           env=dict(command.env), start_new_session=True)
        command.pid_file.write_text(f"{self.pid} {birth(self.pid)}")

    @property
    def pid(self) -> int:
        return self._popen.pid

    def alive(self) -> bool:
        return self._popen.poll() is None

    def exit_code(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._popen.poll()

    def send(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def reap(self, grace_s: float) -> int:
        """The exit code, after `grace_s` of waiting and then, if need be, SIGKILL to the whole session."""
        try:
            code = self._popen.wait(max(0.0, grace_s))
        except subprocess.TimeoutExpired:
            _kill_group(self.pid)
            code = self._popen.wait(10)
        self.command.pid_file.unlink(missing_ok=True)
        return code

    def end(self, number: signal.Signals, grace_s: float) -> int:
        self.send(number)
        return self.reap(grace_s)


def birth(pid: int) -> str | None:
    """What tells this process from an earlier or later one of the same number; None if there is none, or only its corpse."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()
    return None if state in "ZX" else f"{rest[18]}@{boot.strip()}"


def end_orphan(pid_file: Path, number: signal.Signals, grace_s: float) -> bool:
    """Ends what an earlier run left behind under this pid file. True if there was something to end."""
    pid, born = _recorded(pid_file)
    if pid is None or birth(pid) != born:
        pid_file.unlink(missing_ok=True)
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, number)
    if not _gone(pid, born, grace_s):
        _kill_group(pid)
        if not _gone(pid, born, 10):
            raise ServiceError(service=pid_file.stem, cause=f"of an earlier run (process {pid}) does not end")
    pid_file.unlink(missing_ok=True)
    return True


def bound_log(log: Path, max_bytes: int = LOG_BYTES) -> None:
    """Keeps one older copy. Writers append, so they go on at the new end; a line or two may be lost in between."""
    if log.exists() and log.stat().st_size > max_bytes:
        shutil.copyfile(log, log.with_suffix(log.suffix + ".1"))
        os.truncate(log, 0)


def last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    return lines[-1][:300] if lines else "nothing"


def _recorded(pid_file: Path) -> tuple[int | None, str | None]:
    try:
        pid, born = pid_file.read_text(encoding="ascii").split()
        return int(pid), born
    except (OSError, ValueError):
        return None, None


def _gone(pid: int, born: str | None, grace_s: float) -> bool:
    deadline = time.monotonic() + grace_s
    while birth(pid) == born:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
