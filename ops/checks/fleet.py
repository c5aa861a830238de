"""Workers and the reaper."""

from collections.abc import Iterator

from models.base import connect, transaction
from models.errors import DraftmillError
from models.settings import Settings
from models.states import Lane
from models.store import meters, totals
from models.store.schema import standing
from models.store.totals import WorkerTotals
from ops.checks.finding import Finding, bad, note, ok

SLOW_TOKENS_MS = 2_000


def look(settings: Settings) -> Iterator[Finding]:
    if settings.database_url is None:
        return
    engine = connect(settings.database_url.get_secret_value(), size=1)
    try:
        with transaction(engine) as connection:
            if not standing(connection).usable:
                return
            fleet = totals.workers(connection)
            waiting = meters.waiting(connection)
            leads = meters.reaper_leads(connection)
    except DraftmillError:
        return      # said by whoever looks at the services
    finally:
        engine.dispose()
    if (fleet or any(w.queued for w in waiting)) and not leads:
        yield bad("no reaper leads: queues are not refilled, and nobody sees a worker die", "draftmill reaper")
    for worker in fleet:
        yield from _worker(settings, worker)
    for lane in Lane:
        queued = sum(w.queued for w in waiting if w.lane == lane.label)
        if queued and fleet and not any(w.lane == lane.label for w in fleet):
            yield bad(f"{queued:,} samples wait in the {lane.label} lane, and no worker of it runs",
                      f"draftmill worker {lane.label}")
    yield ok(f"{len(fleet)} workers")


def _worker(settings: Settings, w: WorkerTotals) -> Iterator[Finding]:
    if w.heartbeat_age_s > settings.dead_after_s:
        yield bad(f"worker {w.name} on {w.host} has not beaten for {w.heartbeat_age_s:.0f} s",
                  "is a reaper running, and that machine up? draftmill reaper")
    if w.facts.get("token_wait_ms", 0) > SLOW_TOKENS_MS:
        yield note(f"answers wait {w.facts['token_wait_ms']} ms for a token thread in {w.name}", "add a worker process")
    if w.facts.get("spool"):
        yield bad(f"{w.facts['spool']} paid answers wait in the spool of {w.name} on {w.host}",
                  "is the database reachable from there, and has its disk room?")
