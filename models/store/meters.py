"""What a scrape of metrics reads beside `totals`: open samples, verdicts, the reaper's traces. Nothing here writes."""

from dataclasses import dataclass

from sqlalchemy import Connection, text

from models.states import DatasetState, Lane
from models.store.sweeps import REAPER_LOCK

_DEADLINE = text("select set_config('statement_timeout', :p_ms, true)")


def within(connection: Connection, seconds: float) -> None:
    """Each further statement of this transaction ends within so many seconds, or raises StoreAway."""
    connection.execute(_DEADLINE, {"p_ms": str(max(1, round(seconds * 1000)))})


@dataclass(frozen=True, slots=True)
class Waiting:
    """Queued samples of an open dataset's lane. snoozed: those of them that are not due yet."""

    dataset: str
    lane: str
    queued: int
    snoozed: int


_WAITING = text("""
select d.name, s.lane, count(*) as queued, count(*) filter (where s.not_before > clock_timestamp()) as snoozed
from sample s join dataset d on d.id = s.dataset_id where s.state = 0 and d.state = :p_open group by 1, 2""")


def waiting(connection: Connection) -> list[Waiting]:
    return [Waiting(r.name, Lane(r.lane).label, r.queued, r.snoozed)
            for r in connection.execute(_WAITING, {"p_open": int(DatasetState.OPEN)})]


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Ended calls of one kind since the dataset was made."""

    dataset: str
    lane: str
    action: str
    code: str
    calls: int


_VERDICTS = text("""
select d.name, a.lane, coalesce(a.action, '?') as action, coalesce(a.code, '?') as code, count(*) as calls
from attempt a join dataset d on d.id = a.dataset_id where a.ended_at is not null group by 1, 2, 3, 4""")


def verdicts(connection: Connection) -> list[Verdicts]:
    """Reads every attempt, so not once a second."""
    return [Verdicts(r.name, Lane(r.lane).label, r.action, r.code, r.calls) for r in connection.execute(_VERDICTS)]


_DEATHS = text("select count(*) from worker where died_at is not null")
_LEADERS = text("""
select count(*) from pg_locks where locktype = 'advisory' and objid = :p_key and granted
  and database = (select oid from pg_database where datname = current_database())""")


def deaths(connection: Connection) -> int:
    """Workers that were declared dead in the last days (older rows are forgotten)."""
    return int(connection.execute(_DEATHS).scalar_one())


def reaper_leads(connection: Connection) -> bool:
    """Whether some process holds the reaper's lock now."""
    return bool(connection.execute(_LEADERS, {"p_key": REAPER_LOCK}).scalar_one())


@dataclass(frozen=True, slots=True)
class Server:
    """clock: its seconds since the epoch."""

    version: str
    fsync: bool
    clock: float


_SERVER = text("""
select current_setting('server_version') as version, current_setting('fsync') = 'on' as fsync,
  extract(epoch from clock_timestamp())::float8 as clock""")


def server(connection: Connection) -> Server:
    return Server(*connection.execute(_SERVER).one())
