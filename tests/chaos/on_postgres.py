"""Harm to PostgreSQL, with a run under way; each returns when all is mended."""

import signal
import time
from pathlib import Path
from threading import Event, Thread

import psycopg

from tests.chaos.fleet import Fleet

GROWTH_MB = 32      # of a worker that holds 200 answers of 2 kB while PostgreSQL is away


def postgres_restarted(fleet: Fleet) -> None:
    with fleet.away("postgres", signal.SIGINT):
        pass
    fleet.recovers()


def postgres_restarted_at_once(fleet: Fleet) -> None:
    """Immediate: sessions are cut, and the log is replayed at the start."""
    with fleet.away("postgres", signal.SIGQUIT):
        pass
    fleet.recovers()


def postgres_killed(fleet: Fleet) -> None:
    with fleet.away("postgres", signal.SIGKILL):
        time.sleep(1)
    fleet.recovers()


def postgres_away(fleet: Fleet) -> None:
    """No new call starts; what is answered meanwhile waits in the spool, and the worker does not grow."""
    [worker] = fleet.workers()
    before_mb = memory_mb(worker)
    with fleet.away("postgres", signal.SIGINT):
        time.sleep(12)
        before = fleet.simulator.summary()["calls"] + fleet.in_flight
        grown_mb = 0.0
        for _ in range(48):
            time.sleep(1)
            grown_mb = max(grown_mb, memory_mb(worker) - before_mb)
        assert fleet.simulator.summary()["calls"] <= before, "new calls without a claim"
    assert grown_mb <= GROWTH_MB, f"the worker grew by {grown_mb:.0f} MB"
    fleet.remark = f"the worker grew by {grown_mb:.0f} MB (at most {GROWTH_MB})"
    fleet.recovers()


def memory_mb(pid: int) -> float:
    """What a process has of its own: RSS without what it shares with files."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) / 1024


def postgres_slow(fleet: Fleet) -> None:
    fleet.database.delay(0.2)
    fleet.answered(fleet.rows // 3)
    fleet.database.mend()


def replies_lost(fleet: Fleet) -> None:
    """Statements arrive and commit; their replies do not."""
    for _ in range(3):
        fleet.database.lose_answers()
        time.sleep(1.5)
        fleet.database.cut()
        fleet.database.mend()
        fleet.recovers()


def deadlocks(fleet: Fleet) -> None:
    """Another session locks in the contrary order, again and again."""
    over = Event()

    def quarrel() -> None:
        url = fleet.services.database_url.replace("+psycopg", "")
        while not over.is_set():
            try:
                with psycopg.connect(url) as connection:
                    connection.execute("select id from dataset for update")
                    time.sleep(0.2)
                    connection.execute("select id from sample where state < 2 limit 200 for update")
            except psycopg.Error:
                pass
            time.sleep(0.3)
    thread = Thread(target=quarrel)
    thread.start()
    try:
        time.sleep(10)
    finally:
        over.set()
        thread.join()
    fleet.recovers()
