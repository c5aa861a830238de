"""Where the money went: what was billed and is no useful row, by kind. Reads every attempt, so not once a second."""

from collections.abc import Sequence

from sqlalchemy import Connection, text

from models.states import Lane
from models.store.datasets import NUSD
from models.store.totals import DatasetTotals

KINDS = ("truncated", "rejected", "lost", "retries", "replaced")
LOST = ("timeout", "body_lost", "stream_truncated", "bad_json", "empty_body", "body_too_large", "cancelled", "worker_lost",
        "shutdown")

# A promoted answer that was gone on from is used; one that was paid for anew is not.
_KIND = """case
  when a.action = 'promote' then case when 'continued' = any(c.flags) then 'used' else 'truncated' end
  when a.action = 'done' then case when c.fence is distinct from a.fence then 'replaced' when c.truncated then 'truncated'
    when not c.trainable or c.grade = 0 then 'rejected' else 'used' end
  when a.action in ('release', 'rescue') or a.basis = 'estimate' or a.code = any(cast(:p_lost as text[])) then 'lost'
  else 'retries' end"""
_SPENT = text(f"""
select a.dataset_id, {_KIND} as kind, sum(a.completion_tokens) as tokens, sum(a.cost_nusd) as nusd
from attempt a left join completion c on c.sample_id = a.sample_id
where a.dataset_id = any(cast(:p_ids as int[])) and a.ended_at is not null and (a.completion_tokens > 0 or a.cost_nusd > 0)
group by 1, 2""")  # noqa: S608  (only our own expression is spliced in)
_SAVED = text("""
select dataset_id, sum(n_tokens - billed_tokens) as tokens from completion
where dataset_id = any(cast(:p_ids as int[])) and 'continued' = any(flags) group by 1""")


def add(connection: Connection, found: Sequence[DatasetTotals]) -> None:
    """Fill in `waste` (completion tokens and dollars, by kind) and `saved_tokens` (gone on from instead of paid for again)."""
    known = {d.id: d for d in found}
    for d in found:
        d.waste = {kind: {"tokens": 0, "usd": 0.0} for kind in KINDS}
    for row in connection.execute(_SPENT, {"p_ids": list(known), "p_lost": list(LOST)}):
        if row.kind != "used":
            known[row.dataset_id].waste[row.kind] = {"tokens": int(row.tokens), "usd": float(row.nusd) / NUSD}
    for row in connection.execute(_SAVED, {"p_ids": list(known)}):
        known[row.dataset_id].saved_tokens = int(row.tokens or 0)


_CALLS = text("""
select lane, sum(latency_ms) / 1000.0 as seconds from attempt where dataset_id = :p_id and ended_at is not null group by 1""")


def call_seconds(connection: Connection, dataset_id: int) -> dict[Lane, float]:
    """Seconds that the calls of each lane took, one after the other."""
    return {Lane(row.lane): float(row.seconds or 0) for row in connection.execute(_CALLS, {"p_id": dataset_id})}


# Prompts are no waste, but the dataset's sum holds them: it only tells which datasets are worth the exact look.
_WASTEFUL = text("""
select d.id from dataset d cross join lateral (
  select (d.settings #>> '{plan,waste_bound}')::float8
    * greatest(coalesce(d.token_budget, d.useful_tokens), 100::bigint * d.short_max_tokens) as tokens) bound
where d.state = 0 and d.billed_tokens - d.useful_tokens > bound.tokens and (
  select sum(a.completion_tokens) from attempt a where a.dataset_id = d.id and a.ended_at is not null
  ) - d.useful_tokens > bound.tokens""")


def wasteful(connection: Connection) -> list[int]:
    """Open datasets whose billed and not useful tokens passed their bound, a share of the token budget or of what is useful.

    At least the same share of a hundred maxima: a small budget, or a beginning, may go wrong.
    """
    return [row.id for row in connection.execute(_WASTEFUL)]
