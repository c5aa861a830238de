"""Samples: put in, counted out as hints, asked for again."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from models.states import Lane

# A hint that was sent but led to no claim for so long was lost, or its worker waits for the account: send it again.
HINT_STALE_S = 30.0


@dataclass(frozen=True, slots=True)
class NewSample:
    key: str
    primary_id: str
    turn: int
    lane: Lane
    max_tokens: int | None
    prompt: bytes                      # blob.pack_json of the prompt document


_ADD = text("""
with new as (
  insert into sample (dataset_id, key, primary_id, turn, lane, max_tokens, prompt)
  select :p_dataset, n.key, n.primary_id, n.turn, n.lane, n.max_tokens, n.prompt
  from unnest(cast(:p_keys as text[]), cast(:p_primaries as text[]), cast(:p_turns as int[]), cast(:p_lanes as int[]),
    cast(:p_maxima as int[]), cast(:p_prompts as bytea[])) as n(key, primary_id, turn, lane, max_tokens, prompt)
  order by n.key on conflict (dataset_id, key) do nothing returning id),
counted as (update dataset set samples = samples + n from (select count(*) as n from new) x where id = :p_dataset and n > 0)
select count(*) as n from new""")


def add(connection: Connection, dataset_id: int, batch: Sequence[NewSample]) -> int:
    """Insert those whose key is new; how many. Two producers may add the same rows at once."""
    return int(connection.execute(_ADD, {
        "p_dataset": dataset_id, "p_keys": [s.key for s in batch], "p_primaries": [s.primary_id for s in batch],
        "p_turns": [s.turn for s in batch], "p_lanes": [int(s.lane) for s in batch],
        "p_maxima": [s.max_tokens for s in batch], "p_prompts": [s.prompt for s in batch]}).scalar_one())


# In the order of index sample_due, which no other index has: by id alone, a plan would walk the primary key past all that
# is done. And an array rather than `in (select ...)`, for which a plan that does not know the limit reads every sample.
_HINTABLE = text("""
update sample set hinted_at = clock_timestamp() where id = any(array(
  select id from sample where dataset_id = :p_dataset and lane = :p_lane and state = 0
    and (not_before is null or not_before <= clock_timestamp())
    and (hinted_at is null or hinted_at < clock_timestamp() - make_interval(secs => :p_stale))
  order by hinted_at nulls first, id limit :p_n for no key update skip locked))
returning id""")


def hintable(connection: Connection, dataset_id: int, lane: Lane, n: int, stale_s: float = HINT_STALE_S) -> list[int]:
    """Up to n due samples that have no fresh hint, never hinted ones first, marked as hinted now. Ids in order."""
    rows = connection.execute(_HINTABLE, {"p_dataset": dataset_id, "p_lane": int(lane), "p_n": n, "p_stale": stale_s})
    return sorted(row.id for row in rows)


@dataclass(frozen=True, slots=True)
class Selection:
    """Which ended samples a requeue means. None: any."""

    dataset_id: int
    codes: tuple[str, ...] | None = None
    lane: Lane | None = None
    provider: str | None = None
    truncated: bool = False            # done rows that were cut, instead of failed samples
    grades: tuple[int, ...] | None = None      # done rows of these grades; with truncated: of these and cut
    older_than_s: float | None = None
    limit: int = 1_000_000


_FAILED = """
select s.id, s.state, s.lane, s.max_tokens, s.reason from sample s
where s.dataset_id = :p_dataset and s.state = 3
  and (cast(:p_codes as text[]) is null or s.reason = any(cast(:p_codes as text[])))
  and (cast(:p_lane as int) is null or s.lane = :p_lane)
  and (cast(:p_age as float8) is null or s.changed_at < clock_timestamp() - make_interval(secs => :p_age))
  and (cast(:p_provider as text) is null or exists (select from attempt a where a.sample_id = s.id
       and a.fence = s.fence and a.provider = :p_provider))
order by s.id limit :p_limit for no key update of s skip locked"""
_TRUNCATED = """
select s.id, s.state, s.lane, s.max_tokens, s.reason from sample s join completion c on c.sample_id = s.id
where s.dataset_id = :p_dataset and s.state = 2 and (c.truncated or not cast(:p_truncated as bool))
  and (cast(:p_grades as int[]) is null or c.grade = any(cast(:p_grades as int[])))
  and (cast(:p_lane as int) is null or s.lane = :p_lane)
  and (cast(:p_age as float8) is null or s.changed_at < clock_timestamp() - make_interval(secs => :p_age))
  and (cast(:p_provider as text) is null or c.provider = :p_provider)
order by s.id limit :p_limit for no key update of s skip locked"""
_SELECT = {False: text(_FAILED), True: text(_TRUNCATED)}


def select(connection: Connection, wanted: Selection) -> list[Any]:
    """The rows (id, state, lane, max_tokens, reason) a requeue would take, locked for this transaction."""
    done = wanted.truncated or wanted.grades is not None
    return list(connection.execute(_SELECT[done], {
        "p_dataset": wanted.dataset_id, "p_codes": list(wanted.codes) if wanted.codes else None,
        "p_lane": None if wanted.lane is None else int(wanted.lane), "p_age": wanted.older_than_s,
        "p_provider": wanted.provider, "p_limit": wanted.limit,
        **({"p_grades": list(wanted.grades) if wanted.grades else None, "p_truncated": wanted.truncated} if done else {})}))


# A done row that is asked for again gives its tokens back to the budget; its text is kept as the partial answer, and the whole
# row is laid aside for whoever takes the requeue back.
_REQUEUE = text("""
with w as materialized (select * from unnest(cast(:p_ids as bigint[])) as w(id)),
gone as (
  delete from completion c using w where c.sample_id = w.id
  returning c.sample_id, c.dataset_id, c.fence, c.n_tokens, c.trainable and c.grade > 0 as useful, c.ids, c.raw,
    to_jsonb(c) as answer),
shelved as (insert into shelved (requeue_id, sample_id, answer) select :p_record, sample_id, answer from gone),
kept as (
  insert into partial (sample_id, fence, n_tokens, exact, ids, raw)
  select sample_id, fence, n_tokens, false, ids, raw from gone on conflict (sample_id) do nothing),
moved as (
  update sample s set state = 0, burnt = 0, possibly_paid = 0, crashes = 0, not_before = null, hinted_at = null,
    lane = coalesce(:p_lane, s.lane), max_tokens = coalesce(:p_max, s.max_tokens), changed_at = clock_timestamp(),
    ignore = cast(:p_without as text[])
  from w where s.id = w.id and s.state in (2, 3) returning s.id, s.dataset_id),
sums as (
  select dataset_id, count(*) as n,
    (select count(*) from gone) as done, (select coalesce(sum(n_tokens), 0) from gone) as stored,
    (select coalesce(sum(n_tokens) filter (where useful), 0) from gone) as useful
  from moved group by 1)
update dataset d set failed = failed - (x.n - x.done), done = d.done - x.done, stored_tokens = stored_tokens - x.stored,
  useful_tokens = useful_tokens - x.useful
from sums x where d.id = x.dataset_id returning x.n""")
_RECORD = text("""
insert into requeue (who, what, before) values (:p_who, cast(:p_what as jsonb), cast(:p_before as jsonb)) returning id""")


def requeue(connection: Connection, rows: Sequence[Any], *, lane: Lane | None, max_tokens: int | None,
            who: str, what: dict[str, Any], without: Sequence[str] = ()) -> tuple[int, int]:
    """Queue the selected rows again and record it: (how many, the record's id). One transaction with `select`."""
    record = connection.execute(_RECORD, {
        "p_who": who, "p_what": json.dumps(what),
        "p_before": json.dumps([[r.id, r.state, r.lane, r.max_tokens, r.reason] for r in rows])}).scalar_one()
    n = connection.execute(_REQUEUE, {
        "p_ids": [r.id for r in rows], "p_lane": None if lane is None else int(lane), "p_max": max_tokens,
        "p_without": list(without) or None, "p_record": record}).scalar() or 0
    return int(n), int(record)


_UNDO = text("""
with b as (
  select (e->>0)::bigint as id, (e->>1)::int as state, (e->>2)::int as lane, (e->>3)::int as max_tokens, e->>4 as reason, r.at
  from requeue r, jsonb_array_elements(r.before) e where r.id = :p_record and r.undone_at is null),
held as materialized (
  select s.id, s.state from sample s where s.id = any(array(select id from b)) order by s.id for no key update of s),
back as materialized (
  select b.*, v.answer from b join held h on h.id = b.id left join shelved v on v.requeue_id = :p_record and v.sample_id = b.id
  where h.state = 0 and (b.state = 3 or v.answer is not null)
    and not exists (select from attempt a where a.sample_id = b.id and a.started_at > b.at)),
restored as (
  insert into completion select (jsonb_populate_record(null::completion, answer)).* from back where answer is not null
  returning sample_id, dataset_id, n_tokens, trainable and grade > 0 as useful),
unneeded as (delete from partial p using restored x where p.sample_id = x.sample_id),
taken as (delete from shelved v using restored x where v.requeue_id = :p_record and v.sample_id = x.sample_id),
moved as (
  update sample s set state = b.state, lane = b.lane, max_tokens = b.max_tokens, reason = b.reason, hinted_at = null,
    changed_at = clock_timestamp()
  from back b where s.id = b.id returning s.dataset_id, s.state),
marked as (update requeue set undone_at = clock_timestamp() where id = :p_record and undone_at is null),
sums as (
  select dataset_id, count(*) as n, count(*) filter (where state = 3) as failed,
    (select coalesce(sum(n_tokens), 0) from restored) as stored,
    (select coalesce(sum(n_tokens) filter (where useful), 0) from restored) as useful
  from moved group by 1)
update dataset d set failed = d.failed + x.failed, done = d.done + x.n - x.failed, stored_tokens = stored_tokens + x.stored,
  useful_tokens = useful_tokens + x.useful
from sums x where d.id = x.dataset_id returning x.n""")


def undo(connection: Connection, record: int) -> int:
    """End again, as they had ended, the samples of a requeue that no worker has claimed since; how many."""
    return sum(int(row.n) for row in connection.execute(_UNDO, {"p_record": record}))
