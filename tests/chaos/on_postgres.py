"""Harm to PostgreSQL, with a run under way; each returns when all is mended."""

import signal
import time
from threading import Event, Thread

import psycopg

from tests.chaos.fleet import Fleet


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
    """No new call starts; what is answered meanwhile waits in the spool."""
    with fleet.away("postgres", signal.SIGINT):
        time.sleep(12)
        before = fleet.simulator.summary()["calls"] + fleet.in_flight
        time.sleep(48)
        assert fleet.simulator.summary()["calls"] <= before, "new calls without a claim"
    fleet.recovers()


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
