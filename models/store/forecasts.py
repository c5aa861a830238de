"""Refreshing what is committed for answers in flight, once a second, by whoever sweeps.

Between refreshes a claim adds what one answer is expected to cost and a settlement takes that back and adds what it did
cost; the refresh corrects the sum by `margin_tokens`, so that a missing refresh only stops admission.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from sqlalchemy import Connection, text

from models.forecast import Forecast, counted, edges, forecast
from models.states import Lane

_DUE = text("""
select id, short_max_tokens, long_max_tokens, stored_tokens, spent_nusd, billed_tokens, reserved_tokens, reserved_nusd,
  money_budget_nusd
from dataset where not strict and state = 0 and (forecast_at is null or forecast_at < clock_timestamp() - interval '0.9 s')
order by id for no key update skip locked""")
# Ended attempts by lane and size: finished below the cap, at the cap, or cut short. The newest 5,000 tell the present.
_ENDED = text("""
select lane, action, least(completion_tokens, 1000000) as tokens, count(*) as n,
  sum(extract(epoch from ended_at - started_at)) as seconds
from (select lane, action, completion_tokens, ended_at, started_at from attempt
      where dataset_id = :p_dataset and ended_at is not null and completion_tokens > 0
      order by ended_at desc limit 5000) a
group by 1, 2, 3""")
_RUNNING = text("""
select lane, extract(epoch from clock_timestamp() - started_at) as seconds from attempt
where dataset_id = :p_dataset and ended_at is null""")
_WRITE = text("""
update dataset set forecast_at = clock_timestamp(), short_expected = :p_short, long_expected = :p_long,
  margin_tokens = :p_margin, nusd_per_token = coalesce(:p_price, nusd_per_token), margin_nusd = :p_margin_nusd where id = :p_id""")


@dataclass(slots=True)
class _Seen:
    """One lane's answers. tokens_per_s: of finished ones, so that time in flight says tokens so far."""

    cap: int
    sizes: list[float] = field(default_factory=list)
    cut: list[float] = field(default_factory=list)
    capped: int = 0
    tokens: float = 0.0
    seconds: float = 0.0
    running_s: list[float] = field(default_factory=list)

    def forecast(self) -> Forecast:
        bounds = edges(self.cap)
        rate = self.tokens / self.seconds if self.seconds else 0.0
        so_far = [min(s * rate, self.cap * 0.999) for s in self.running_s]
        finished, cut, running = (counted(sizes, bounds) for sizes in (self.sizes, self.cut, so_far))
        return forecast(self.cap, finished, self.capped, cut, running)


def refresh(connection: Connection) -> int:
    """Refresh all open datasets that are due and not in strict mode; how many."""
    due = connection.execute(_DUE).all()
    for dataset in due:
        seen = _seen(dataset, connection.execute(_ENDED, {"p_dataset": dataset.id}),
                     connection.execute(_RUNNING, {"p_dataset": dataset.id}))
        connection.execute(_WRITE, _values(dataset, {lane: s.forecast() for lane, s in seen.items()}))
    return len(due)


def _seen(dataset: Any, ended: Iterable[Any], running: Iterable[Any]) -> dict[Lane, _Seen]:
    seen = {Lane.SHORT: _Seen(dataset.short_max_tokens), Lane.LONG: _Seen(dataset.long_max_tokens)}
    for row in ended:
        lane = seen[Lane(row.lane)]
        if row.action in ("done", "promote"):
            lane.tokens += row.tokens * row.n
            lane.seconds += float(row.seconds)
            if row.tokens >= lane.cap:
                lane.capped += row.n
            else:
                lane.sizes += [float(row.tokens)] * row.n
        elif row.action in ("rescue", "release"):
            lane.cut += [float(min(row.tokens, lane.cap - 1))] * row.n
    for row in running:
        seen[Lane(row.lane)].running_s.append(float(row.seconds))
    return seen


def _values(dataset: Any, forecasts: dict[Lane, Forecast]) -> dict[str, Any]:
    committed = sum(f.in_flight + f.sd for f in forecasts.values())
    billed = dataset.billed_tokens
    price = ceil(dataset.spent_nusd / billed) if billed and dataset.spent_nusd else None
    return {"p_id": dataset.id, "p_short": max(1, ceil(forecasts[Lane.SHORT].expected)),
            "p_long": max(1, ceil(forecasts[Lane.LONG].expected)), "p_margin": ceil(committed) - dataset.reserved_tokens,
            "p_price": price, "p_margin_nusd": 0}
