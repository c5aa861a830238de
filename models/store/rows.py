"""Stored rows, read back in order of sample id and in bounded memory: for exports, regrading and verification."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from sqlalchemy import Connection, text

from models.tokens.row import Span

PAGE = 500

_PAGE = text("""
select c.*, s.key, s.primary_id, s.turn, s.prompt, s.lane from completion c join sample s on s.id = c.sample_id
where c.dataset_id = :p_dataset and c.sample_id > :p_after and c.sample_id <= :p_last and c.grade >= :p_grade
  and (cast(:p_until as timestamptz) is null or c.created_at <= cast(:p_until as timestamptz))
order by c.sample_id limit :p_page""")
_NOW = text("select clock_timestamp()::text")
_LAST = text("select coalesce(max(sample_id), 0) from completion where dataset_id = :p_dataset")


def now(connection: Connection) -> str:
    """The database's clock, as `stored` takes it."""
    return str(connection.execute(_NOW).scalar_one())


def stored(
    connection: Connection, dataset_id: int, min_grade: int = 0, after: int = 0, until: str | None = None
) -> Iterator[Any]:
    """Completions with their sample's key and prompt, blobs as stored. Only samples above `after`, answers stored by `until`.

    Pages by key rather than holding a cursor, so that a long export keeps no transaction open for ever; rows that are
    stored after the first page stay out.
    """
    last = connection.execute(_LAST, {"p_dataset": dataset_id}).scalar_one()
    while page := connection.execute(_PAGE, {"p_dataset": dataset_id, "p_after": after, "p_last": last, "p_grade": min_grade,
                                             "p_until": until, "p_page": PAGE}).all():
        yield from page
        after = page[-1].sample_id


_REGRADE = text("""
with r as materialized (
  select * from unnest(cast(:p_id as bigint[]), cast(:p_fence as int[]), cast(:p_grade as int[]), cast(:p_candidates as int[]),
    cast(:p_rule as text[]), cast(:p_reason as text[]), cast(:p_delta as int[]), cast(:p_prompt_delta as int[]),
    cast(:p_version as text[]), cast(:p_n_prompt as int[]), cast(:p_n_tokens as int[]), cast(:p_spans as text[]),
    cast(:p_prompt_ids as bytea[]), cast(:p_ids as bytea[]))
  as r(id, fence, grade, candidates, rule, reason, delta, prompt_delta, version, n_prompt, n_tokens, spans, prompt_ids, ids)),
old as materialized (
  select c.sample_id, c.dataset_id, c.n_tokens, c.trainable and c.grade > 0 as useful
  from completion c join r on r.id = c.sample_id and r.fence = c.fence
  order by c.sample_id for no key update of c),
changed as (
  update completion c set grade = r.grade, candidates = r.candidates, rule = r.rule, reason = r.reason, delta = r.delta,
    prompt_delta = r.prompt_delta, version = r.version, n_prompt = r.n_prompt, n_tokens = r.n_tokens, spans = r.spans::jsonb,
    prompt_ids = r.prompt_ids, ids = r.ids
  from r join old on old.sample_id = r.id where c.sample_id = r.id
  returning old.dataset_id, c.n_tokens - old.n_tokens as stored,
    case when c.trainable and c.grade > 0 then c.n_tokens else 0 end
      - case when old.useful then old.n_tokens else 0 end as useful),
sums as (select dataset_id, sum(stored) as stored, sum(useful) as useful, count(*) as n from changed group by 1)
update dataset d set stored_tokens = d.stored_tokens + x.stored, useful_tokens = d.useful_tokens + x.useful
from sums x where d.id = x.dataset_id returning x.n""")

REGRADED = ("id", "fence", "grade", "candidates", "rule", "reason", "delta", "prompt_delta", "version", "n_prompt", "n_tokens",
            "spans", "prompt_ids", "ids")


def regrade(connection: Connection, rows: list[dict[str, Any]]) -> int:
    """Replace ids and grades of rows that have not been replaced meanwhile; how many. Keys of a row: REGRADED."""
    columns = {f"p_{name}": [row[name] for row in rows] for name in REGRADED}
    return sum(int(row.n) for row in connection.execute(_REGRADE, columns))


def spans_json(spans: Iterable[Span]) -> str:
    """As column `spans` holds them: [[kind, start, end], ...]."""
    return json.dumps([[s.kind, s.start, s.end] for s in spans])
