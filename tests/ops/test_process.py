import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ops.process import Command, Process, birth, bound_log, end_orphan, last_line

REPOSITORY = Path(__file__).parents[2]
Make = Callable[[str], Command]


@pytest.fixture
def command(tmp_path: Path) -> Make:
    """A Python one-liner as a command, logging to `log`."""
    def make(script: str) -> Command:
        return Command("child", [sys.executable, "-S", "-c", script], dict(os.environ), tmp_path / "log", tmp_path / "child.pid")
    return make


def until(true: Callable[[], bool], deadline_s: float = 20) -> bool:
    deadline = time.monotonic() + deadline_s
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)
    return true()


def test_a_process_writes_to_its_log_and_tells_its_exit_code(command: Make) -> None:
    child = Process(command("print('hello'); raise SystemExit(3)"))
    assert child.reap(20) == 3
    assert last_line(child.command.log) == "hello"
    assert not child.command.pid_file.exists()


def test_one_that_ignores_the_signal_is_killed_with_its_own_children(command: Make, tmp_path: Path) -> None:
    child = Process(command("import os, signal, time; signal.signal(15, signal.SIG_IGN); pid = os.fork()\n"
                            "if pid: print(pid, flush=True)\n"
                            "time.sleep(600)"))
    assert until(lambda: last_line(tmp_path / "log").isdigit())
    grandchild = int(last_line(tmp_path / "log"))
    assert child.end(signal.SIGTERM, grace_s=0.2) == -signal.SIGKILL
    assert until(lambda: birth(grandchild) is None)


def test_a_process_ends_with_its_parent_even_if_that_is_killed(tmp_path: Path) -> None:
    script = f"""
import os, sys, time
from pathlib import Path
from ops.process import Command, Process
here = Path({str(tmp_path)!r})
child = Process(Command("child", ["/bin/sleep", "600"], dict(os.environ), here / "log", here / "child.pid"))
print(child.pid, flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    pid = int(parent.stdout.readline())
    parent.stdout.close()
    assert until(lambda: "sleep" in Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0])
    parent.kill()
    parent.wait()
    assert until(lambda: birth(pid) is None)


def test_what_an_earlier_run_left_is_ended_by_force_if_need_be(command: Make, tmp_path: Path) -> None:
    child = Process(command("import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"))
    assert until(lambda: last_line(tmp_path / "log") == "deaf")
    assert end_orphan(tmp_path / "child.pid", signal.SIGTERM, grace_s=0.2)
    assert child.exit_code() == -signal.SIGKILL
    assert not end_orphan(tmp_path / "child.pid", signal.SIGTERM, grace_s=0.2)


@pytest.mark.parametrize("record", ["{pid} 1@another-boot", "{pid}", "", "x y", "999999999 1"])
def test_a_process_that_only_has_the_number_of_an_old_one_is_left_alone(command: Make, tmp_path: Path, record: str) -> None:
    child = Process(command("import time; time.sleep(600)"))
    (tmp_path / "child.pid").write_text(record.format(pid=child.pid))
    assert not end_orphan(tmp_path / "child.pid", signal.SIGKILL, grace_s=0.2)
    assert child.alive()
    child.end(signal.SIGKILL, 10)


def test_a_log_is_bounded_while_its_writer_goes_on(command: Make, tmp_path: Path) -> None:
    child = Process(command("import time; print('x' * 5000, flush=True); time.sleep(600)"))
    log = tmp_path / "log"
    assert until(lambda: log.exists() and log.stat().st_size > 5000)
    with log.open("ab") as writer:
        bound_log(log, max_bytes=4096)
        writer.write(b"afterwards\n")
    assert log.read_bytes() == b"afterwards\n"
    assert (tmp_path / "log.1").stat().st_size == 5001
    child.end(signal.SIGKILL, 10)
