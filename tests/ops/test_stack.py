import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from models.errors import ServiceError
from ops import stack
from ops.process import birth, last_line
from ops.stack import Child, Death, Stack

REPOSITORY = Path(__file__).parents[2]
SLEEPS = "import time; time.sleep(600)"
DEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"


def child(name: str, script: str, **more: float) -> Child:
    return Child(name, [sys.executable, "-S", "-c", script], {"GREETING": "hello"}, **more)  # type: ignore[arg-type]


def until(true: Callable[[], bool], deadline_s: float = 20) -> bool:
    deadline = time.monotonic() + deadline_s
    while not true() and time.monotonic() < deadline:
        time.sleep(0.02)
    return true()


def deaths(running: Stack, count: int) -> list[Death]:
    """The next deaths, by polling."""
    seen: list[Death] = []

    def enough() -> bool:
        seen.extend(running.poll())
        return len(seen) >= count

    assert until(enough)
    return seen


def test_children_get_the_environment_they_were_given_and_a_log_each(tmp_path: Path) -> None:
    script = "import os; print(os.environ['GREETING'], 'PATH' in os.environ, flush=True); " + SLEEPS
    with Stack(tmp_path, [child("one", script), child("two", script)]) as running:
        assert set(running.pids()) == {"one", "two"}
        for name in ("one", "two"):
            assert until(lambda log=tmp_path / f"logs/{name}.log": last_line(log) == "hello False")
    assert running.pids() == {}


def test_one_that_dies_is_started_again_and_the_others_are_left_alone(tmp_path: Path) -> None:
    with Stack(tmp_path, [child("one", SLEEPS), child("two", SLEEPS)]) as running:
        before = running.pids()
        os.kill(before["one"], signal.SIGKILL)
        death, = deaths(running, 1)
        assert (death.name, death.exit_code, death.in_a_row, death.looping) == ("one", -signal.SIGKILL, 1, False)
        assert until(lambda: not running.poll() and set(running.pids()) == {"one", "two"})
        assert running.pids()["two"] == before["two"]
        assert running.pids()["one"] != before["one"]


def test_a_crash_loop_is_slowed_down_reported_and_tells_its_last_words(tmp_path: Path,
                                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "BACKOFF_S", (0.01, 0.05))
    with Stack(tmp_path, [child("bad", "raise SystemExit('no such lane')"), child("good", SLEEPS)]) as running:
        seen = deaths(running, 6)
        assert [death.in_a_row for death in seen] == [1, 2, 3, 4, 5, 6]
        assert [death.looping for death in seen] == [False] * 4 + [True] * 2
        assert [death.restart_in_s for death in seen] == [0.01, 0.02, 0.04, 0.05, 0.05, 0.05]
        assert {(death.exit_code, death.said) for death in seen} == {(1, "no such lane")}
        assert running.looping() == ["bad"]
        assert "good" in running.pids()


def test_one_that_lived_long_starts_again_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "STEADY_S", 0.0)
    with Stack(tmp_path, [child("one", "raise SystemExit(0)")]) as running:
        assert [(death.in_a_row, death.restart_in_s) for death in deaths(running, 3)] == [(0, 0.0)] * 3
        assert running.looping() == []


def test_a_command_that_does_not_exist_is_a_crash_loop_and_not_an_end(tmp_path: Path) -> None:
    with Stack(tmp_path, [Child("gone", ["/no/such/program"], {})]) as running:
        death, = deaths(running, 1)
        assert "No such file" in death.said


def test_a_stop_ends_politely_whoever_listens_and_kills_the_rest(tmp_path: Path) -> None:
    polite = ("import signal, sys, time\n"
              "def end(*_): print('drained', flush=True); sys.exit(0)\n"
              "signal.signal(15, end); print('up', flush=True); time.sleep(600)")
    running = Stack(tmp_path, [child("polite", polite, grace_s=20), child("deaf", DEAF, grace_s=0.2)])
    running.start()
    assert until(lambda: (last_line(tmp_path / "logs/polite.log"), last_line(tmp_path / "logs/deaf.log")) == ("up", "deaf"))
    pids = running.pids()
    running.stop()
    assert last_line(tmp_path / "logs/polite.log") == "drained"
    assert [birth(pid) for pid in pids.values()] == [None, None]
    running.stop()


def test_an_engine_outlives_its_clients_at_the_end(tmp_path: Path) -> None:
    story = tmp_path / "story"
    script = ("import signal, sys, time\n"
              "def end(*_): time.sleep({pause}); open({story!r}, 'a').write('{name} '); sys.exit(0)\n"
              "signal.signal(15, end); print('up', flush=True); time.sleep(600)")
    children = [child(name, script.format(pause=pause, story=str(story), name=name), stage=stage)
                for name, pause, stage in (("client", 0.3, 1), ("engine", 0, 0))]
    with Stack(tmp_path, children):
        assert until(lambda: all(last_line(tmp_path / f"logs/{name}.log") == "up" for name in ("client", "engine")))
    assert story.read_text() == "client engine "


def test_one_home_has_one_supervisor(tmp_path: Path) -> None:
    with Stack(tmp_path, [child("one", SLEEPS)]) as running:
        with pytest.raises(ServiceError, match="another draftmill process"):
            Stack(tmp_path, []).start()
        assert set(running.pids()) == {"one"}
    with Stack(tmp_path, [child("one", SLEEPS)]) as again:
        assert set(again.pids()) == {"one"}


def test_two_children_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match="two children of one name"):
        Stack(tmp_path, [child("one", SLEEPS), child("one", SLEEPS)]).start()


def supervisor(home: Path, script: str) -> tuple[subprocess.Popen[str], int]:
    """A supervisor in a process of its own, with one child of this script; and the child's process id, once it is up."""
    code = f"""
import sys, time
from pathlib import Path
from ops.process import last_line
from ops.stack import Child, Stack
running = Stack(Path({str(home)!r}), [Child("one", [sys.executable, "-S", "-c", {script!r}], {{}})])
running.start()
while last_line(Path({str(home)!r}) / "logs/one.log") == "nothing":
    time.sleep(0.02)
print(running.pids()["one"], flush=True)
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", code], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    pid = int(process.stdout.readline())
    process.stdout.close()
    return process, pid


def test_children_end_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    process, pid = supervisor(tmp_path, "print('up', flush=True); " + SLEEPS)
    process.kill()
    process.wait()
    assert until(lambda: birth(pid) is None)


def test_a_child_that_outlived_a_killed_supervisor_is_ended_at_the_next_start(tmp_path: Path) -> None:
    process, pid = supervisor(tmp_path, DEAF)
    process.kill()
    process.wait()
    assert birth(pid)
    with Stack(tmp_path, [child("another", SLEEPS, grace_s=0.2)]) as running:
        assert birth(pid) is None
        assert set(running.pids()) == {"another"}


def test_no_secret_of_the_environment_shows_in_the_arguments(tmp_path: Path) -> None:
    secret = Child("one", [sys.executable, "-S", "-c", SLEEPS], {"DRAFTMILL_DATABASE_URL": "hunter2"})
    with Stack(tmp_path, [secret]) as running:
        assert "hunter2" not in Path(f"/proc/{running.pids()['one']}/cmdline").read_text()
