"""What people read: sums per dataset, lane, provider and cause. From counters where there are any; nothing here writes."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from sqlalchemy import Connection, text

from models.states import DatasetState, Grade, Lane
from models.store.datasets import NUSD


@dataclass(slots=True)
class DatasetTotals:
    """tokens_per_s, usd_per_million: over the last minute and of useful tokens. eta_s: None when nothing moves.

    paces: tokens a second over the last minute, 5 and 15 minutes, as far as there are answers; paced: answers of 5 minutes.
    """

    id: int
    name: str
    state: str
    closed_reason: str | None
    samples: int
    queued: int
    running: int
    done: int
    failed: int
    token_budget: int | None
    stored_tokens: int
    useful_tokens: int
    billed_tokens: int
    reserved_tokens: int
    margin_tokens: int
    money_budget_usd: float | None
    spent_usd: float
    reserved_usd: float
    tokens_per_s: float = 0.0
    paces: list[float] = field(default_factory=list)
    paced: int = 0
    running_by_lane: dict[str, int] = field(default_factory=dict)
    grades: dict[str, int] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    waste: dict[str, dict[str, float]] = field(default_factory=dict)    # by `spending.add` alone, as the next
    saved_tokens: int = 0
    excluded: dict[str, str] = field(default_factory=dict)      # providers left out -> why

    @property
    def waste_tokens(self) -> int:
        """Billed completion and prompt tokens beyond those of stored answers."""
        return max(0, self.billed_tokens - self.stored_tokens)

    @property
    def finished(self) -> bool:
        return self.samples > 0 and self.queued == 0 and self.running == 0

    @property
    def settled(self) -> bool:
        """Nothing more will happen by itself."""
        return self.finished or (self.state == "closed" and self.running == 0)

    @property
    def usd_per_million(self) -> float | None:
        return self.spent_usd * 1e6 / self.useful_tokens if self.useful_tokens and self.spent_usd else None

    @property
    def left_tokens(self) -> float:
        """What is still to be stored: all samples at the mean so far, or less where the budget ends before."""
        mean = self.stored_tokens / self.done if self.done else 0.0
        left = (self.queued + self.running) * mean
        if self.token_budget is not None:
            left = min(left, max(0, self.token_budget - self.stored_tokens))
        return left

    @property
    def pace(self) -> float:
        """Stored tokens a second of late: over the last minute, or as far back as it takes."""
        return self.tokens_per_s or next((p for p in self.paces if p), 0.0)

    @property
    def eta_s(self) -> float | None:
        return self.left_tokens / self.pace if self.pace and self.left_tokens and not self.settled else None

    @property
    def eta_range_s(self) -> tuple[float, float] | None:
        """From the best to the worst pace of late, each widened by what chance does to so few answers."""
        paces = [p for p in (self.tokens_per_s, *self.paces) if p]
        if self.eta_s is None or not self.paced:
            return None
        chance = 1 + 1 / math.sqrt(self.paced)
        return self.left_tokens / max(paces) / chance, self.left_tokens / min(paces) * chance

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "waste_tokens": self.waste_tokens, "usd_per_million": self.usd_per_million, "eta_s": self.eta_s,
                "eta_range_s": self.eta_range_s, "finished": self.finished}


# Named, since a newer version may add columns while this runs.
_DATASETS = text("""
select id, name, state, closed_reason, samples, running, done, failed, token_budget, stored_tokens, useful_tokens, billed_tokens,
  reserved_tokens, margin_tokens, money_budget_nusd, spent_nusd, reserved_nusd, settings
from dataset where cast(:p_names as text[]) is null or name = any(cast(:p_names as text[])) order by name""")
_GRADES = text("select dataset_id, grade, count(*) as n from completion group by 1, 2")
_FAILURES = text("""
select dataset_id, coalesce(reason, '?') as code, count(*) as n from sample where state = 3 group by 1, 2 order by 3 desc""")
_RUNNING = text("select dataset_id, lane, count(*) as n from attempt where ended_at is null group by 1, 2")
# A run that began 3 minutes ago has no pace over 15.
_RATE = text("""
select dataset_id, rate, paced, array_remove(array[s60 / least(60, age), s300 / least(300, age), s900 / least(900, age)], null)
  as paces
from (select a.dataset_id, coalesce(sum(a.completion_tokens) filter (where ago <= 60), 0) / 60.0 as rate,
    (sum(a.completion_tokens) filter (where ago <= 60))::float8 as s60,
    (sum(a.completion_tokens) filter (where ago <= 300))::float8 as s300, sum(a.completion_tokens)::float8 as s900,
    count(*) filter (where ago <= 300) as paced,
    greatest(1, extract(epoch from clock_timestamp() - min(a.started_at)))::float8 as age
  from dataset d, attempt a, lateral (select extract(epoch from clock_timestamp() - a.ended_at) as ago) x
  where a.dataset_id = d.id and a.ended_at > clock_timestamp() - interval '900 s' and a.action = 'done'
    and a.code <> 'imported' group by 1) r""")


def datasets(connection: Connection, names: list[str] | None = None) -> list[DatasetTotals]:
    rows = connection.execute(_DATASETS, {"p_names": names}).mappings().all()
    totals = {row["id"]: _total(dict(row)) for row in rows}
    for row in connection.execute(_GRADES):
        if row.dataset_id in totals:
            totals[row.dataset_id].grades[Grade(row.grade).label] = row.n
    for row in connection.execute(_FAILURES):
        if row.dataset_id in totals:
            totals[row.dataset_id].failures[row.code] = row.n
    for row in connection.execute(_RUNNING):
        if row.dataset_id in totals:
            totals[row.dataset_id].running_by_lane[Lane(row.lane).label] = row.n
    for row in connection.execute(_RATE):
        if row.dataset_id in totals:
            of = totals[row.dataset_id]
            of.tokens_per_s, of.paces, of.paced = float(row.rate), list(row.paces), row.paced
    return list(totals.values())


def _total(d: dict[str, Any]) -> DatasetTotals:
    money = d["money_budget_nusd"]
    return DatasetTotals(
        id=d["id"], name=d["name"], state=DatasetState(d["state"]).name.lower(), closed_reason=d["closed_reason"],
        samples=d["samples"], queued=d["samples"] - d["running"] - d["done"] - d["failed"], running=d["running"],
        done=d["done"], failed=d["failed"], token_budget=d["token_budget"], stored_tokens=d["stored_tokens"],
        useful_tokens=d["useful_tokens"], billed_tokens=d["billed_tokens"], reserved_tokens=d["reserved_tokens"],
        margin_tokens=d["margin_tokens"], money_budget_usd=None if money is None else money / NUSD,
        spent_usd=d["spent_nusd"] / NUSD, reserved_usd=d["reserved_nusd"] / NUSD,
        excluded=d["settings"].get("excluded", {}))


@dataclass(frozen=True, slots=True)
class WorkerTotals:
    id: int
    name: str
    host: str
    pid: int
    lane: str
    concurrency: int
    in_flight: int
    heartbeat_age_s: float
    facts: dict[str, Any]


_WORKERS = text("""
select id, name, host, pid, lane, concurrency, in_flight, facts,
  extract(epoch from clock_timestamp() - heartbeat_at)::float8 as age
from worker where stopped_at is null and died_at is null order by id""")


def workers(connection: Connection) -> list[WorkerTotals]:
    return [WorkerTotals(w.id, w.name, w.host, w.pid, Lane(w.lane).label, w.concurrency, w.in_flight, w.age, w.facts)
            for w in connection.execute(_WORKERS)]


@dataclass(frozen=True, slots=True)
class ProviderTotals:
    """One provider of one dataset over its last attempts; times in seconds.

    limited: answered 429; server_errors: 5xx; refusals: answers that are refusals or were filtered; grades: rows by grade's name.
    """

    dataset: str
    provider: str
    quantization: str
    calls: int
    ok: int
    refused: int
    broken: int
    truncated: int
    p50_s: float | None
    p95_s: float | None
    tokens_per_s: float | None
    cost_usd: float
    limited: int = 0
    server_errors: int = 0
    refusals: int = 0
    grades: dict[str, int] = field(default_factory=dict)


_PROVIDERS = text("""
select d.name as dataset, coalesce(nullif(a.provider, ''), '?') as provider, coalesce(a.quantization, '') as quantization,
  count(*) as calls, count(*) filter (where a.action in ('done', 'promote')) as ok,
  count(*) filter (where a.action = 'snooze') as refused, count(*) filter (where a.action in ('retry', 'drop')) as broken,
  count(*) filter (where a.code in ('length', 'truncated') or a.action = 'promote') as truncated,
  percentile_cont(0.5) within group (order by a.latency_ms) / 1000.0 as p50,
  percentile_cont(0.95) within group (order by a.latency_ms) / 1000.0 as p95,
  sum(a.completion_tokens) filter (where a.action = 'done') * 1000.0
    / nullif(sum(a.latency_ms) filter (where a.action = 'done'), 0) as rate,
  coalesce(sum(a.cost_nusd), 0) / 1e9 as cost,
  count(*) filter (where a.status = 429) as limited, count(*) filter (where a.status between 500 and 599) as server_errors,
  count(*) filter (where 'refusal' = any(c.flags) or a.code in ('refused', 'content_filtered')) as refusals,
  array_agg(c.grade) filter (where c.grade is not null) as grades
from dataset d cross join lateral (
  select * from attempt a where a.dataset_id = d.id and a.ended_at is not null order by a.ended_at desc limit 5000) a
left join completion c on c.sample_id = a.sample_id and c.fence = a.fence
where cast(:p_names as text[]) is null or d.name = any(cast(:p_names as text[]))
group by 1, 2, 3 order by 1, 4 desc""")


def providers(connection: Connection, names: list[str] | None = None) -> list[ProviderTotals]:
    return [ProviderTotals(r.dataset, r.provider, r.quantization, r.calls, r.ok, r.refused, r.broken, r.truncated, r.p50, r.p95,
                           None if r.rate is None else float(r.rate), float(r.cost), r.limited, r.server_errors, r.refusals,
                           {grade.label: r.grades.count(grade) for grade in Grade if grade in r.grades} if r.grades else {})
            for r in connection.execute(_PROVIDERS, {"p_names": names})]
