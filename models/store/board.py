"""What pages draw: counts per lane, time series, lengths. Nothing here writes."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, text

from models.states import Lane
from models.store.datasets import NUSD


@dataclass(frozen=True, slots=True)
class LaneCounts:
    lane: str
    done: int
    failed: int
    running: int
    queued: int


# Long ones are counted by narrow indexes; short ones are the rest of the dataset's own counters.
_LANES = text("""
select d.id, d.done, d.failed, d.running, d.samples - d.running - d.done - d.failed as queued,
  (select count(*) from attempt a join completion c on c.sample_id = a.sample_id and c.fence = a.fence
    where a.dataset_id = d.id and a.lane = 1 and a.action = 'done') as long_done,
  (select count(*) from sample s where s.dataset_id = d.id and s.lane = 1 and s.state = 3) as long_failed,
  (select count(*) from attempt a where a.dataset_id = d.id and a.lane = 1 and a.ended_at is null) as long_running,
  (select count(*) from sample s where s.dataset_id = d.id and s.lane = 1 and s.state = 0) as long_queued
from dataset d where cast(:p_names as text[]) is null or d.name = any(cast(:p_names as text[]))""")
_COUNTED = ("done", "failed", "running", "queued")


def lanes(connection: Connection, names: list[str] | None = None) -> dict[int, list[LaneCounts]]:
    """By dataset: short, then long."""
    found = {}
    for row in connection.execute(_LANES, {"p_names": names}).mappings():
        long = {k: int(row[f"long_{k}"]) for k in _COUNTED}
        found[row["id"]] = [LaneCounts("short", **{k: max(0, row[k] - long[k]) for k in _COUNTED}), LaneCounts("long", **long)]
    return found


_SPARKS = text("""
select d.id, floor(extract(epoch from clock_timestamp() - a.ended_at) / 60)::int as ago, sum(a.completion_tokens) / 60.0 as rate
from dataset d join attempt a on a.dataset_id = d.id and a.ended_at > clock_timestamp() - make_interval(mins => :p_minutes)
  and a.action = 'done' and a.code <> 'imported' group by 1, 2""")


def sparks(connection: Connection, minutes: int = 30) -> dict[int, list[float]]:
    """By dataset: stored tokens a second in each of the last minutes, oldest first. Only of datasets that moved."""
    found: dict[int, list[float]] = {}
    for row in connection.execute(_SPARKS, {"p_minutes": minutes}):
        if 0 <= row.ago < minutes:
            found.setdefault(row.id, [0.0] * minutes)[minutes - 1 - row.ago] = float(row.rate or 0)
    return found


@dataclass(frozen=True, slots=True)
class Step:
    """What ended in one slot of time. stored: completion tokens of answers that were stored; billed: with prompts."""

    at: datetime
    stored: int
    billed: int
    usd: float
    done: int
    broken: int


_BOUNDS = text("""
select min(ended_at) as low, max(ended_at) as high, clock_timestamp() as now from attempt
where dataset_id = :p_id and ended_at is not null""")
_BEFORE = text("""
select coalesce(sum(completion_tokens) filter (where action = 'done'), 0) as stored,
  coalesce(sum(coalesce(prompt_tokens, 0) + coalesce(completion_tokens, 0)), 0) as billed, coalesce(sum(cost_nusd), 0) as nusd
from attempt where dataset_id = :p_id and ended_at < :p_low""")
_SERIES = text("""
select least(:p_slots - 1, floor(extract(epoch from ended_at - :p_low) / :p_step))::int as slot,
  coalesce(sum(completion_tokens) filter (where action = 'done'), 0) as stored,
  coalesce(sum(coalesce(prompt_tokens, 0) + coalesce(completion_tokens, 0)), 0) as billed, coalesce(sum(cost_nusd), 0) as nusd,
  count(*) filter (where action = 'done') as done, count(*) filter (where action in ('drop', 'retry')) as broken
from attempt where dataset_id = :p_id and ended_at >= :p_low group by 1 order by 1""")


@dataclass(frozen=True, slots=True)
class Series:
    """Equal slots of step_s seconds; before: what had been stored, billed, spent when the first of them began."""

    steps: list[Step]
    step_s: float
    before: Step


def series(connection: Connection, dataset_id: int, last_s: float | None = None, slots: int = 72) -> Series | None:
    """From the first call to the last one, or of the last so many seconds; None where nothing has ended yet."""
    bounds = connection.execute(_BOUNDS, {"p_id": dataset_id}).one()
    if bounds.low is None:
        return None
    high = bounds.high if last_s is None else bounds.now
    span = max(60.0, (high - bounds.low).total_seconds()) if last_s is None else last_s
    low = high - timedelta(seconds=span)
    step = span / slots
    rows = connection.execute(_SERIES, {"p_id": dataset_id, "p_low": low, "p_step": step, "p_slots": slots})
    known = {max(0, row.slot): row for row in rows}
    before = connection.execute(_BEFORE, {"p_id": dataset_id, "p_low": low}).one()
    steps = [_step(low + timedelta(seconds=(i + 1) * step), known.get(i)) for i in range(slots)]
    return Series(steps, step, Step(low, int(before.stored), int(before.billed), float(before.nusd) / NUSD, 0, 0))


def _step(at: datetime, row: Any) -> Step:
    if row is None:
        return Step(at, 0, 0, 0.0, 0, 0)
    return Step(at, int(row.stored), int(row.billed), float(row.nusd) / NUSD, row.done, row.broken)


@dataclass(frozen=True, slots=True)
class Length:
    """Stored answers of low to high tokens; cut: those that ended at a limit."""

    low: int
    high: int
    ended: int
    cut: int


_LENGTHS = text("""
with m as (select greatest(:p_bins, long_max_tokens, short_max_tokens) as most from dataset where id = :p_id)
select least(:p_bins - 1, n_tokens * :p_bins / (m.most + 1))::int as bin, count(*) filter (where not truncated) as ended,
  count(*) filter (where truncated) as cut, m.most
from completion, m where dataset_id = :p_id group by 1, m.most""")


def lengths(connection: Connection, dataset_id: int, bins: int = 32) -> list[Length]:
    """Equal bins up to the longest lane's maximum; empty where there is no answer."""
    rows = {row.bin: row for row in connection.execute(_LENGTHS, {"p_id": dataset_id, "p_bins": bins})}
    if not rows:
        return []
    most = next(iter(rows.values())).most + 1
    edges = [-(-most * i // bins) for i in range(bins + 1)]
    return [Length(edges[i], edges[i + 1] - 1, rows[i].ended if i in rows else 0, rows[i].cut if i in rows else 0)
            for i in range(bins)]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a dataset is asked for, as far as a person looks for it."""

    model: str
    profile: str
    accounts: tuple[str, ...]
    lanes: dict[str, tuple[int, int]]      # lane -> (max_tokens, concurrency)
    quantizations: tuple[str, ...]
    mode: str
    purse_usd: float | None
    created_at: datetime
    closed_at: datetime | None


_PLAN = text("select settings, created_at, closed_at from dataset where id = :p_id")


def plan(connection: Connection, dataset_id: int) -> Plan:
    row = connection.execute(_PLAN, {"p_id": dataset_id}).one()
    p = row.settings["plan"]
    account = p["account"]
    return Plan(p["model"], p["profile"], (account,) if isinstance(account, str) else tuple(account),
                {lane.label: (p[lane.label]["max_tokens"], p[lane.label]["concurrency"]) for lane in Lane},
                tuple(p.get("routing", {}).get("quantizations") or ()), p.get("budget_mode", "strict"),
                (row.settings.get("purse") or {}).get("usd"), row.created_at, row.closed_at)


@dataclass(frozen=True, slots=True)
class Purse:
    """One sum of dollars that several datasets share."""

    usd: float
    spent_usd: float
    reserved_usd: float
    datasets: tuple[str, ...]


_PURSES = text("""
select max((settings #>> '{purse,usd}')::float8) as usd, sum(spent_nusd) as spent, sum(reserved_nusd + margin_nusd) as reserved,
  array_agg(name order by name) as names
from dataset where settings ? 'purse' group by settings #>> '{purse,name}' order by min(id)""")


def purses(connection: Connection) -> list[Purse]:
    return [Purse(row.usd, float(row.spent) / NUSD, float(row.reserved) / NUSD, tuple(row.names))
            for row in connection.execute(_PURSES)]


# A provider with few answers may have a price per token that only a short answer to a long prompt explains.
_DEAREST = text("""
select coalesce(max(nusd / tokens) filter (where n >= 5), sum(nusd) / sum(tokens)) / 1e9 as usd
from (select provider, sum(cost_nusd)::float8 as nusd, sum(completion_tokens)::float8 as tokens, count(*) as n from attempt
  where dataset_id = :p_id and action in ('done', 'promote') and completion_tokens > 0 and code <> 'imported' group by 1) p""")


def dearest(connection: Connection, dataset_id: int) -> float | None:
    """Dollars per completion token, prompts included, of the dearest provider so far; None before any answer."""
    found = connection.execute(_DEAREST, {"p_id": dataset_id}).scalar_one()
    return None if found is None else float(found)
