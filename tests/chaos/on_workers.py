"""Harm to workers and reapers, with a run under way; each returns when all is mended."""

import signal
import time
from pathlib import Path

from models.store.sweeps import REAPER_LOCK
from tests.chaos.fleet import Fleet, until

FAKETIME = next((str(p) for p in Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), "")
TWO_HOURS_AHEAD = {"LD_PRELOAD": FAKETIME, "FAKETIME": "+2h", "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                   "PYTHONPATH": str(Path(__file__).parent / "clocks")}


def kill_worker(fleet: Fleet) -> None:
    assert fleet.kill("ops worker", "short") == 1
    fleet.recovers()


def kill_worker_five_times(fleet: Fleet) -> None:
    for _ in range(5):
        fleet.rig.wait(lambda: fleet.in_flight >= 1_900 or fleet.complete >= fleet.rows - 2_000, 90, "1,900 in flight")
        assert fleet.kill("ops worker", "short") == 1
        fleet.recovers()


def stop_worker(fleet: Fleet) -> None:
    """Within the grace some answers end; the rest is cancelled and its claims are released."""
    [pid] = fleet.workers()
    fleet.send(signal.SIGTERM, pid)
    fleet.until_gone(pid, 90)
    assert fleet.held(pid) == 0, "claims that were not released"
    fleet.twice += fleet.released(pid)
    assert fleet.twice > 0, "nothing was cut short"
    fleet.recovers()


def stop_worker_kindly(fleet: Fleet) -> None:
    """Answers are shorter than the grace: nothing is cancelled, nothing is paid twice."""
    [pid] = fleet.workers()
    fleet.send(signal.SIGTERM, pid)
    fleet.until_gone(pid, 90)
    assert fleet.held(pid) == fleet.released(pid) == 0
    fleet.recovers()


def stop_worker_twice(fleet: Fleet) -> None:
    [pid] = fleet.workers()
    fleet.send(signal.SIGTERM, pid)
    time.sleep(0.5)
    fleet.send(signal.SIGTERM, pid)
    fleet.until_gone(pid, 60)
    assert fleet.held(pid) == 0, "claims that were not released"
    fleet.twice += fleet.released(pid)
    fleet.recovers()


def freeze_worker(fleet: Fleet) -> None:
    """Past its heartbeat: its samples go to others; when it wakes up its answers are refused and booked."""
    pid = min(fleet.workers())
    fleet.send(signal.SIGSTOP, pid)
    fleet.twice += fleet.held(pid)
    dead = "select count(*) from worker where pid = %s and died_at is not null"
    until(lambda: fleet.query(dead, pid) == [(1,)], 90, "declared dead")
    fleet.recovers()
    fleet.send(signal.SIGCONT, pid)
    until(lambda: len(fleet.query("select id from worker where pid = %s", pid)) == 2, 90, "a new name")


def clocks_apart(fleet: Fleet) -> None:
    """The run's own clock is two hours ahead; that of a second worker is two hours late, and the first one dies."""
    second = fleet.spawn("-m", "ops", "worker", "short", "-c", "30", "-n", "late", FAKETIME="-2h")
    until(lambda: len(fleet.query("select id from worker where lane = 0")) == 2, 120, "a second worker")
    fleet.recovers()
    assert fleet.kill("ops worker", "short", "short-1") == 1
    fleet.recovers()
    second.terminate()
    second.wait(60)
    fleet.twice += fleet.released(second.pid)     # what it could not end within its grace


def no_faketime() -> str:
    return "" if FAKETIME else "Debian's package faketime is not installed"


def same_name_twice(fleet: Fleet) -> None:
    names = {name for (name,) in fleet.query("select name from worker where lane = 0")}
    second = fleet.spawn("-m", "ops", "worker", "short", "-c", "30", "-n", names.pop())
    until(lambda: len(fleet.query("select id from worker where lane = 0")) == 2, 120, "a second worker")
    fleet.recovers()
    second.terminate()
    second.wait(60)


def two_reapers(fleet: Fleet) -> None:
    """The leader is frozen: another leads before long, and the first finds that out when it wakes up."""
    [leader] = fleet.rig.pids("ops reaper")
    second = fleet.spawn("-m", "ops", "reaper")
    time.sleep(3)
    holds = f"select pid from pg_locks where locktype = 'advisory' and objid = {REAPER_LOCK} and granted"  # noqa: S608
    before = fleet.query(holds)
    fleet.send(signal.SIGSTOP, leader)
    frozen = time.monotonic()
    with fleet.redis() as client:
        client.flushall()
    assert fleet.kill("ops worker", "short") == 1
    until(lambda: fleet.query(holds) not in ([], before), 30, "another that leads")
    fleet.remark = f"another leads after {time.monotonic() - frozen:.0f} s"
    fleet.recovers()
    fleet.send(signal.SIGCONT, leader)
    fleet.recovers()
    second.terminate()
    second.wait(30)
