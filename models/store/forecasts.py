"""Refreshing what is committed for answers in flight, once a second, by whoever looks first.

Between refreshes a claim adds what one answer is expected to cost, and a settlement moves nothing (settlements.py); the
refresh corrects the sum by `margin_tokens`, so that a missing refresh only stops admission.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from sqlalchemy import Connection, text

from models.forecast import BUCKETS, Counts, Forecast, edges, forecast
from models.states import Lane

NEWEST = 4_000      # ended attempts that tell the present

_DUE = text("""
select id, short_max_tokens, long_max_tokens, reserved_tokens, reserved_nusd, nusd_per_token
from dataset where not strict and state = 0 and (token_budget is not null or money_budget_nusd is not null)
  and (forecast_at is null or forecast_at < clock_timestamp() - interval '0.9 s')
order by id for no key update skip locked""")
# Attempts by lane, fate and size, summed here since fetching thousands of rows costs more than all the rest. A size nobody
# counted (of those in flight, of those a lost worker had) is the time it took at the speed of finished ones.
_SEEN = text("""
with newest as materialized (
  select lane, action, completion_tokens as tokens, cost_nusd, date_part('epoch', ended_at - started_at) as seconds
  from attempt where dataset_id = :p_dataset and ended_at is not null and code is distinct from 'imported'
    and (completion_tokens > 0 or action in ('release', 'rescue'))
  order by ended_at desc limit :p_newest),
lanes as materialized (
  select v.*, (select sum(tokens) / nullif(sum(seconds), 0) from newest n
               where n.lane = v.lane and action in ('done', 'promote')) as per_s
  from (values (0, cast(:p_short as float8), cast(:p_short_edges as float8[])),
               (1, cast(:p_long as float8), cast(:p_long_edges as float8[]))) as v(lane, cap, edges)),
sized as (
  select lane, case when action in ('done', 'promote') then 'finished' else 'cut' end as fate, cost_nusd,
    case when action not in ('release', 'rescue') then tokens end as tokens, seconds from newest
  union all
  select lane, 'running', 0, null, date_part('epoch', clock_timestamp() - started_at)
  from attempt where dataset_id = :p_dataset and ended_at is null),
placed as (
  select s.lane, case when fate = 'finished' and tokens >= cap then 'capped' else fate end as fate, cost_nusd, edges,
    least(coalesce(tokens, seconds * per_s, 0), case fate when 'finished' then cap else 0.999 * cap end) as size
  from sized s join lanes l on l.lane = s.lane)
select lane, fate, greatest(0, least(width_bucket(size, edges), :p_buckets) - 1) as bucket, count(*) as n,
  sum(size)::float8 as tokens, sum(cost_nusd)::float8 as nusd from placed group by 1, 2, 3""")
_WRITE = text("""
update dataset set forecast_at = clock_timestamp(), short_expected = :p_short, long_expected = :p_long,
  margin_tokens = :p_margin, nusd_per_token = :p_price, margin_nusd = :p_margin_nusd where id = :p_id""")


@dataclass(slots=True)
class _Seen:
    """One lane's answers, by fate and bucket."""

    cap: int
    counts: dict[str, Counts]

    def forecast(self) -> Forecast:
        counts = self.counts
        return forecast(self.cap, counts["finished"], sum(counts["capped"].n), counts["cut"], counts["running"])


def refresh(connection: Connection) -> int:
    """Refresh all open datasets that are due and not in strict mode; how many."""
    due = connection.execute(_DUE).all()
    for dataset in due:
        rows = connection.execute(_SEEN, {
            "p_dataset": dataset.id, "p_newest": NEWEST, "p_buckets": BUCKETS, "p_short": dataset.short_max_tokens,
            "p_short_edges": edges(dataset.short_max_tokens), "p_long": dataset.long_max_tokens,
            "p_long_edges": edges(dataset.long_max_tokens)}).all()
        seen = {Lane.SHORT: _seen(Lane.SHORT, dataset.short_max_tokens, rows),
                Lane.LONG: _seen(Lane.LONG, dataset.long_max_tokens, rows)}
        connection.execute(_WRITE, _values(dataset, {lane: s.forecast() for lane, s in seen.items()}, _price(dataset, rows)))
    return len(due)


def _seen(lane: Lane, cap: int, rows: Iterable[Any]) -> _Seen:
    counts = {fate: ([0] * BUCKETS, [0.0] * BUCKETS) for fate in ("finished", "capped", "cut", "running")}
    for row in rows:
        if row.lane == lane:
            n, tokens = counts[row.fate]
            n[row.bucket], tokens[row.bucket] = row.n, row.tokens
    return _Seen(cap, {fate: Counts(n, tokens) for fate, (n, tokens) in counts.items()})


def _price(dataset: Any, rows: Sequence[Any]) -> int:
    """Nano-dollars for each completion token, prompts and lost calls included; the plan's until some were paid for."""
    known = [row for row in rows if row.fate != "running"]
    tokens, nusd = sum(row.tokens for row in known), sum(row.nusd for row in known)
    return ceil(nusd / tokens) if tokens and nusd else int(dataset.nusd_per_token)


def _values(dataset: Any, forecasts: dict[Lane, Forecast], price: int) -> dict[str, Any]:
    in_flight, sd = (sum(getattr(f, name) for f in forecasts.values()) for name in ("in_flight", "sd"))
    return {"p_id": dataset.id, "p_short": max(1, ceil(forecasts[Lane.SHORT].expected)),
            "p_long": max(1, ceil(forecasts[Lane.LONG].expected)),
            "p_margin": ceil(in_flight + sd) - dataset.reserved_tokens, "p_price": price,
            "p_margin_nusd": ceil((in_flight + 2 * sd) * price) - dataset.reserved_nusd}
