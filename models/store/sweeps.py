"""What the reaper and the workers' heartbeats write: who is alive, whose samples come back, who leads."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, text

from models.states import Event
from models.store.settlements import MAX_CRASHES, Settlement, settle

REAPER_LOCK = 7_145_002

_LEAD = text("select pg_try_advisory_lock(:p_key) from set_config('idle_session_timeout', :p_idle, false)")


def lead(connection: Connection, idle_s: float) -> bool:
    """Whether this session is the leading reaper: until its connection ends, or it was idle for idle_s seconds."""
    return bool(connection.execute(_LEAD, {"p_key": REAPER_LOCK, "p_idle": f"{idle_s * 1e3:.0f}ms"}).scalar_one())


_JOIN = text("""
insert into worker (name, host, pid, lane, concurrency) values (:p_name, :p_host, :p_pid, :p_lane, :p_concurrency)
returning id""")
# A worker that was declared dead learns it here: its rows are gone, so it must end and start anew.
_BEAT = text("""
update worker set heartbeat_at = clock_timestamp(), in_flight = :p_in_flight, facts = cast(:p_facts as jsonb)
where id = :p_id and died_at is null returning id""")
_LEAVE = text("update worker set stopped_at = clock_timestamp(), in_flight = 0 where id = :p_id")


def join(connection: Connection, *, name: str, host: str, pid: int, lane: int, concurrency: int) -> int:
    return int(connection.execute(_JOIN, {
        "p_name": name, "p_host": host, "p_pid": pid, "p_lane": lane, "p_concurrency": concurrency}).scalar_one())


def beat(connection: Connection, worker_id: int, in_flight: int, facts: dict[str, Any]) -> bool:
    """False when the worker was declared dead meanwhile."""
    return connection.execute(_BEAT, {
        "p_id": worker_id, "p_in_flight": in_flight, "p_facts": json.dumps(facts)}).first() is not None


def leave(connection: Connection, worker_id: int) -> None:
    connection.execute(_LEAVE, {"p_id": worker_id})


_DIED = text("""
update worker set died_at = clock_timestamp()
where stopped_at is null and died_at is null
  and (heartbeat_at < clock_timestamp() - make_interval(secs => :p_after) or id = any(cast(:p_known as int[])))
returning id""")
# Also what a worker that stopped or died earlier still holds: a claim committed after its last sweep.
_ORPHANS = text("""
select s.id, s.fence, coalesce(d.stored_tokens / nullif(d.done, 0), a.reserved_tokens) as tokens,
  least(a.reserved_nusd, coalesce(d.spent_nusd / nullif(d.done, 0), a.reserved_nusd)) as nusd
from worker w join sample s on s.worker_id = w.id and s.state = 1
join attempt a on a.sample_id = s.id and a.fence = s.fence join dataset d on d.id = s.dataset_id
where w.stopped_at is not null or w.died_at is not null order by s.id limit :p_limit""")


def bury(connection: Connection, after_s: float, known_dead: Sequence[int] = ()) -> int:
    """Declare workers dead whose heartbeat is older than `after_s`, or that are known to be; how many."""
    return len(connection.execute(_DIED, {"p_after": after_s, "p_known": list(known_dead)}).all())


def rescue(connection: Connection, limit: int = 5_000) -> int:
    """Queue the samples of dead workers again, their calls booked as estimates; how many."""
    rows = connection.execute(_ORPHANS, {"p_limit": limit}).all()
    return len(settle(connection, [
        Settlement(row.id, row.fence, Event.RESCUE, "worker_lost", basis="estimate", possibly_paid=False,
                   completion_tokens=int(row.tokens), cost_nusd=int(row.nusd)) for row in rows])) if rows else 0


_BLAME = text(f"""
with held as materialized (
  select id, worker_id, state, reason, fence from sample where id = any(cast(:p_ids as bigint[])) order by id for no key update),
-- Of a rescue that ended only while this waited for the lock, the sample tells and the attempt does not yet.
blamed as (
  update sample s set crashes = s.crashes + 1, changed_at = clock_timestamp(),
    state = case when h.state = 0 and s.crashes + 1 >= {MAX_CRASHES} then 3 else s.state end,
    reason = case when h.state = 0 and s.crashes + 1 >= {MAX_CRASHES} then 'poison' else s.reason end
  from held h where s.id = h.id and (h.worker_id = :p_worker and h.state = 1 or h.state < 2 and exists (
    select from attempt a where a.sample_id = h.id and a.worker_id = :p_worker and (a.code = 'worker_lost'
      or h.state = 0 and h.reason = 'worker_lost' and a.fence = h.fence)))
  returning s.id, s.dataset_id, s.state),
locked as materialized (
  select d.id from dataset d where d.id = any(array(select dataset_id from blamed where state = 3)) order by d.id
  for no key update),
counted as (
  update dataset d set failed = d.failed + (select count(*) from blamed b where b.dataset_id = d.id and b.state = 3)
  from locked l where l.id = d.id)
select id from blamed""")  # noqa: S608  (a number of ours)


def blame(connection: Connection, worker_id: int, sample_ids: Sequence[int]) -> int:
    """Count a crash for the samples that were in hand when their worker died, not for its other thousands.

    Also where the reaper was quicker and rescued them: a worker in a crash loop may be started again later than that. Then
    a sample that has now crashed too often ends here.
    """
    return len(connection.execute(_BLAME, {"p_ids": list(sample_ids), "p_worker": worker_id}).all())


_PURGE_WORKERS = text("""
delete from worker w where coalesce(stopped_at, died_at) < clock_timestamp() - interval '7 days'
  and not exists (select from sample s where s.worker_id = w.id and s.state = 1)""")


def forget_workers(connection: Connection) -> int:
    return connection.execute(_PURGE_WORKERS).rowcount


_HELD = text("select id, fence from sample where worker_id = :p_worker and state = 1")


def held_by(connection: Connection, worker_id: int) -> list[tuple[int, int]]:
    """(sample id, fence) of all that this worker is running, as the database sees it."""
    return [(row.id, row.fence) for row in connection.execute(_HELD, {"p_worker": worker_id})]
