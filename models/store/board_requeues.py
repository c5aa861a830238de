"""Who asked for samples again, and what became of them. Nothing here writes."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, text


@dataclass(frozen=True, slots=True)
class Requeued:
    """One record. unclaimed: could still be taken back. running, done, failed: of those that were claimed since."""

    id: int
    at: datetime
    ago_s: float
    who: str
    what: dict[str, Any]
    count: int
    unclaimed: int
    running: int
    done: int
    failed: int
    undone: bool


# A claim under a fence after the record is an attempt that began after it.
_LATEST = text("""
with r as materialized (
  select id, at, who, what, before, undone_at, jsonb_array_length(before) as n from requeue
  where cast(:p_name as text) is null or what ->> 'dataset' = :p_name order by id desc limit :p_n),
s as (
  select r.id as record, s.state, exists (select from attempt a where a.sample_id = s.id and a.started_at > r.at) as claimed
  from r, jsonb_array_elements(r.before) e, sample s where s.id = (e ->> 0)::bigint and r.n <= :p_most)
select r.id, r.at, r.who, r.what, r.n, r.undone_at is not null as undone,
  extract(epoch from clock_timestamp() - r.at)::float8 as ago,
  count(*) filter (where s.state = 0 and not s.claimed) as unclaimed,
  count(*) filter (where s.state = 1 or s.state = 0 and s.claimed) as running,
  count(*) filter (where s.state = 2 and s.claimed) as done, count(*) filter (where s.state = 3 and s.claimed) as failed
from r left join s on s.record = r.id group by r.id, r.at, r.who, r.what, r.n, r.undone_at order by r.id desc""")


def latest(connection: Connection, name: str | None = None, n: int = 8, most: int = 50_000) -> list[Requeued]:
    """Newest first; of records with more than `most` samples only the count is told."""
    return [Requeued(r.id, r.at, r.ago, r.who, r.what, r.n, r.unclaimed, r.running, r.done, r.failed, r.undone)
            for r in connection.execute(_LATEST, {"p_name": name, "p_n": n, "p_most": most})]
