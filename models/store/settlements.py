"""Settle: one statement closes attempts, writes completions or reasons, gives reservations back and moves counters.

Attempts are closed from the input, not from the owned rows: a late writer is refused by its fence, but what it spent
is booked. Repeating a settlement changes nothing, so that a lost reply to a COMMIT is answered by sending it again.

Between two refreshes of a forecast the margin takes up what a settlement moves, so that the sum committed stays: giving
back the reservation of a short answer, made when the cap was expected, would admit others in its place.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, TextClause, text

from models.states import Event

MAX_CRASHES = 3


@dataclass(frozen=True, slots=True)
class Stored:
    """The completion of a settlement; the columns of table `completion`. ids and raw are blobs."""

    grade: int
    version: str
    trainable: bool
    truncated: bool
    finish_reason: str
    model: str
    account: str
    fingerprint: str
    sampling: str                      # JSON
    n_prompt: int
    n_tokens: int
    spans: str                         # JSON
    prompt_ids: bytes
    ids: bytes
    raw: bytes
    candidates: int = 1
    rule: str = ""
    reason: str = ""
    delta: int | None = None
    prompt_delta: int | None = None
    flags: str = ""                    # comma-separated labels


@dataclass(frozen=True, slots=True)
class NextTurn:
    key: str
    turn: int
    lane: int
    prompt: bytes


@dataclass(frozen=True, slots=True)
class Settlement:
    """What became of one claim. `wait_s`: not before so many seconds from now, on the database clock.

    has_bill: the provider keeps books, where what is an estimate here can be looked up by its generation id.
    """

    id: int
    fence: int
    event: Event
    code: str
    wait_s: float = 0.0
    burns: bool = False
    possibly_paid: bool = False
    ignore: str | None = None
    basis: str = "none"
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_nusd: int = 0
    provider: str = ""
    quantization: str = ""
    model: str = ""
    generation_id: str = ""
    status: int | None = None
    latency_ms: int | None = None
    stored: Stored | None = None
    next_turn: NextTurn | None = None
    has_bill: bool = False
    blamed: bool = field(default=False)   # the sample was in hand when its worker died


_ATTEMPT = {
    "id": "bigint", "fence": "int", "event": "text", "code": "text", "wait_s": "float8", "burns": "bool",
    "possibly_paid": "bool", "ignore": "text", "basis": "text", "prompt_tokens": "int", "completion_tokens": "int",
    "cost_nusd": "bigint", "provider": "text", "quantization": "text", "model": "text", "generation_id": "text",
    "status": "int", "latency_ms": "int", "has_bill": "bool", "blamed": "bool"}
_STORED = {
    "grade": "int", "version": "text", "trainable": "bool", "truncated": "bool", "finish_reason": "text",
    "account": "text", "fingerprint": "text", "sampling": "text", "n_prompt": "int", "n_tokens": "int",
    "spans": "text", "prompt_ids": "bytea", "ids": "bytea", "raw": "bytea", "candidates": "int", "rule": "text",
    "reason": "text", "delta": "int", "prompt_delta": "int", "flags": "text", "asked_model": "text"}
_NEXT = {"next_key": "text", "next_turn": "int", "next_lane": "int", "next_prompt": "bytea"}
_FIELDS = {**_ATTEMPT, **_STORED, **_NEXT}


def _statement() -> TextClause:
    arrays = ", ".join(f"cast(:p_{name} as {kind}[])" for name, kind in _FIELDS.items())
    names = ", ".join(_FIELDS)
    return text(f"""
with r as materialized (select * from unnest({arrays}) as r({names})),
owned as materialized (
  select r.*, s.dataset_id, s.primary_id, s.state, s.crashes + r.blamed::int as died
  from r join sample s on s.id = r.id where s.fence = r.fence order by s.id for no key update of s),
-- With all that `closed` writes: to join r once more would compare each of its rows with each other (measured: 16 ms).
was as materialized (
  select a.dataset_id, a.ended_at is null as open, a.reserved_tokens, a.reserved_nusd,
    coalesce(a.prompt_tokens, 0) + coalesce(a.completion_tokens, 0) as billed, coalesce(a.cost_nusd, 0) as cost,
    {", ".join(f"r.{name}" for name in _ATTEMPT)}
  from r join attempt a on a.sample_id = r.id and a.fence = r.fence
  where a.ended_at is null or (a.code = 'worker_lost' and r.event <> 'rescue')
  order by a.sample_id for no key update of a),
stored as (
  insert into completion (sample_id, fence, dataset_id, grade, candidates, rule, reason, delta, prompt_delta, version,
    trainable, truncated, finish_reason, flags, provider, quantization, model, account, fingerprint, sampling,
    billed_prompt_tokens, billed_tokens, cost_nusd, n_prompt, n_tokens, spans, prompt_ids, ids, raw)
  select id, fence, dataset_id, grade, candidates, rule, reason, delta, prompt_delta, version, trainable, truncated,
    finish_reason, case when flags = '' then '{{}}' else string_to_array(flags, ',') end, provider, quantization,
    asked_model, account, fingerprint, sampling::jsonb,
    case when basis = 'usage' then prompt_tokens end, case when basis = 'usage' then completion_tokens end,
    cost_nusd, n_prompt, n_tokens, spans::jsonb, prompt_ids, ids, raw
  from owned where state = 1 and event = 'done'
  on conflict (sample_id) do nothing returning sample_id, dataset_id, n_tokens, trainable and grade > 0 as useful),
kept as (
  insert into partial (sample_id, fence, n_tokens, exact, ids, raw)
  select id, fence, n_tokens, grade = 5, ids, raw from owned where state = 1 and event = 'promote' and ids is not null
  on conflict (sample_id) do update set fence = excluded.fence, n_tokens = excluded.n_tokens, exact = excluded.exact,
    ids = excluded.ids, raw = excluded.raw),
spent_partial as (
  delete from partial p using owned o where p.sample_id = o.id and o.state = 1 and o.event = 'done'),
followed as (
  insert into sample (dataset_id, key, primary_id, turn, lane, prompt)
  select dataset_id, next_key, primary_id, next_turn, next_lane, next_prompt
  from owned where state = 1 and event = 'done' and next_key is not null
  on conflict (dataset_id, key) do nothing returning dataset_id),
moved as (
  update sample s set worker_id = null, hinted_at = null, changed_at = clock_timestamp(),
    state = case o.event when 'done' then 2 when 'drop' then 3
      when 'rescue' then case when o.died >= {MAX_CRASHES} then 3 else 0 end else 0 end,
    lane = case o.event when 'promote' then 1 else s.lane end,
    burnt = s.burnt + o.burns::int, possibly_paid = s.possibly_paid + o.possibly_paid::int, crashes = o.died,
    ignore = case when o.ignore is null or o.ignore = any(coalesce(s.ignore, '{{}}')) then s.ignore
      else coalesce(s.ignore, '{{}}') || o.ignore end,
    not_before = case when o.wait_s > 0 then clock_timestamp() + make_interval(secs => o.wait_s) end,
    reason = case when o.event = 'done' then null when o.event = 'rescue' and o.died >= {MAX_CRASHES} then 'poison'
      else o.code end
  from owned o where s.id = o.id and o.state = 1
  returning s.id, s.dataset_id, s.state),
closed as (
  update attempt a set ended_at = clock_timestamp(), action = w.event, code = w.code, basis = w.basis,
    provider = w.provider, quantization = w.quantization, model = w.model, generation_id = w.generation_id,
    status = w.status, prompt_tokens = w.prompt_tokens, completion_tokens = w.completion_tokens,
    cost_nusd = w.cost_nusd, latency_ms = w.latency_ms,
    bill_at = case when w.has_bill and w.basis = 'estimate' and w.generation_id <> '' then clock_timestamp() end
  from was w where a.sample_id = w.id and a.fence = w.fence
  returning w.dataset_id, w.open, w.reserved_tokens, w.reserved_nusd,
    w.prompt_tokens + w.completion_tokens - w.billed as billed, w.cost_nusd - w.cost as cost),
sums as materialized (
  select dataset_id, sum(held) as held, sum(held_nusd) as held_nusd, sum(running) as running, sum(billed) as billed,
    sum(cost) as cost, sum(stored) as stored, sum(useful) as useful, sum(done) as done, sum(failed) as failed,
    sum(added) as added
  from (
    select dataset_id, case when open then reserved_tokens else 0 end as held,
      case when open then reserved_nusd else 0 end as held_nusd, open::int as running, billed, cost,
      0 as stored, 0 as useful, 0 as done, 0 as failed, 0 as added from closed
    union all select dataset_id, 0, 0, 0, 0, 0, n_tokens, case when useful then n_tokens else 0 end, 0, 0, 0 from stored
    union all select dataset_id, 0, 0, 0, 0, 0, 0, 0, (state = 2)::int, (state = 3)::int, 0 from moved
    union all select dataset_id, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1 from followed) u group by 1),
locked as materialized (
  select d.id from dataset d where d.id = any(array(select dataset_id from sums)) order by d.id for no key update),
counted as (
  update dataset d set reserved_tokens = d.reserved_tokens - x.held, reserved_nusd = d.reserved_nusd - x.held_nusd,
    running = d.running - x.running, billed_tokens = d.billed_tokens + x.billed, spent_nusd = d.spent_nusd + x.cost,
    stored_tokens = d.stored_tokens + x.stored, useful_tokens = d.useful_tokens + x.useful, done = d.done + x.done,
    failed = d.failed + x.failed, samples = d.samples + x.added,
    margin_tokens = case when d.strict then 0 else d.margin_tokens + x.held - x.stored end,
    margin_nusd = case when d.strict then 0 else d.margin_nusd + x.held_nusd - x.cost end
  from sums x join locked l on l.id = x.dataset_id where d.id = x.dataset_id)
select id from moved
""")  # noqa: S608  (only our own field names are spliced in)


_SETTLE = _statement()


def settle(connection: Connection, settlements: Sequence[Settlement]) -> set[int]:
    """The ids that were still ours. The rest was refused by its fence; its cost is booked all the same."""
    rows = connection.execute(_SETTLE, _columns(settlements))
    return {row.id for row in rows}


def _columns(settlements: Sequence[Settlement]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {f"p_{name}": [] for name in _FIELDS}
    for s in settlements:
        for name in _ATTEMPT:
            value = getattr(s, name)  # psycopg wants one type per list
            columns[f"p_{name}"].append(str(value) if name == "event" else float(value) if name == "wait_s" else value)
        for name in _STORED:
            source = "model" if name == "asked_model" else name
            columns[f"p_{name}"].append(getattr(s.stored, source) if s.stored else None)
        follow = s.next_turn
        for name in _NEXT:
            columns[f"p_{name}"].append(getattr(follow, name.removeprefix("next_")) if follow else None)
    return columns
