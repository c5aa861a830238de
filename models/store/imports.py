"""Answers that were made elsewhere become completions: one statement, for samples that wait or have failed.

A sample that is done keeps its answer, and one that is running keeps its worker, so importing again changes nothing. Each
import is an attempt under a fence of its own, closed as it is opened (code `imported`), so that all sums stay sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from models.store.settlements import NextTurn, Stored

IMPORTED = "imported"


@dataclass(frozen=True, slots=True)
class Import:
    """basis: usage where the answer named its counts, else none. cost_nusd: 0 where it named no cost."""

    sample_id: int
    stored: Stored
    basis: str
    prompt_tokens: int
    completion_tokens: int
    cost_nusd: int
    provider: str
    quantization: str
    served_model: str
    generation_id: str
    next_turn: NextTurn | None = None


_OWN = {"sample_id": "bigint", "basis": "text", "prompt_tokens": "int", "completion_tokens": "int", "cost_nusd": "bigint",
        "provider": "text", "quantization": "text", "served_model": "text", "generation_id": "text"}
_STORED = {
    "grade": "int", "version": "text", "trainable": "bool", "truncated": "bool", "finish_reason": "text", "model": "text",
    "account": "text", "fingerprint": "text", "sampling": "text", "n_prompt": "int", "n_tokens": "int", "spans": "text",
    "prompt_ids": "bytea", "ids": "bytea", "raw": "bytea", "candidates": "int", "rule": "text", "reason": "text",
    "delta": "int", "prompt_delta": "int", "flags": "text"}
_NEXT = {"next_key": "text", "next_turn": "int", "next_prompt": "bytea"}
_FIELDS = {**_OWN, **_STORED, **_NEXT}
_STORE = text(f"""
with r as materialized (
  select * from unnest({", ".join(f"cast(:p_{name} as {kind}[])" for name, kind in _FIELDS.items())}) as r({", ".join(_FIELDS)})),
owned as materialized (
  select r.*, s.dataset_id, s.primary_id, s.lane, s.state, s.fence + 1 as fence
  from r join sample s on s.id = r.sample_id where s.state in (0, 3) order by s.id for no key update of s),
attempted as (
  insert into attempt (sample_id, fence, dataset_id, worker_id, lane, account, reserved_tokens, reserved_nusd, ended_at, action,
    code, basis, provider, quantization, model, generation_id, prompt_tokens, completion_tokens, cost_nusd)
  select sample_id, fence, dataset_id, 0, lane, account, 0, 0, clock_timestamp(), 'done', '{IMPORTED}', basis, provider,
    quantization, served_model, generation_id, prompt_tokens, completion_tokens, cost_nusd from owned),
stored as (
  insert into completion (sample_id, fence, dataset_id, grade, candidates, rule, reason, delta, prompt_delta, version, trainable,
    truncated, finish_reason, flags, provider, quantization, model, account, fingerprint, sampling, billed_prompt_tokens,
    billed_tokens, cost_nusd, n_prompt, n_tokens, spans, prompt_ids, ids, raw)
  select sample_id, fence, dataset_id, grade, candidates, rule, reason, delta, prompt_delta, version, trainable, truncated,
    finish_reason, case when flags = '' then '{{}}' else string_to_array(flags, ',') end, provider, quantization, model, account,
    fingerprint, sampling::jsonb, case when basis = 'usage' then prompt_tokens end,
    case when basis = 'usage' then completion_tokens end, cost_nusd, n_prompt, n_tokens, spans::jsonb, prompt_ids, ids, raw
  from owned),
unneeded as (delete from partial p using owned o where p.sample_id = o.sample_id),
followed as (
  insert into sample (dataset_id, key, primary_id, turn, lane, prompt)
  select dataset_id, next_key, primary_id, next_turn, lane, next_prompt from owned where next_key is not null
  on conflict (dataset_id, key) do nothing returning dataset_id),
moved as (
  update sample s set state = 2, fence = o.fence, worker_id = null, hinted_at = null, not_before = null, reason = null,
    changed_at = clock_timestamp()
  from owned o where s.id = o.sample_id returning s.id),
sums as materialized (
  select dataset_id, count(*) as done, count(*) filter (where state = 3) as failed, sum(n_tokens) as stored,
    sum(case when trainable and grade > 0 then n_tokens else 0 end) as useful,
    sum(prompt_tokens + completion_tokens) as billed, sum(cost_nusd) as cost,
    (select count(*) from followed f where f.dataset_id = o.dataset_id) as added
  from owned o group by 1),
locked as materialized (
  select d.id from dataset d where d.id = any(array(select dataset_id from sums)) order by d.id for no key update),
counted as (
  update dataset d set done = d.done + x.done, failed = d.failed - x.failed, samples = d.samples + x.added,
    stored_tokens = d.stored_tokens + x.stored, useful_tokens = d.useful_tokens + x.useful,
    billed_tokens = d.billed_tokens + x.billed, spent_nusd = d.spent_nusd + x.cost
  from sums x join locked l on l.id = x.dataset_id where d.id = x.dataset_id)
select id from moved
""")  # noqa: S608  (only our own field names are spliced in)


def store(connection: Connection, batch: Sequence[Import]) -> set[int]:
    """The samples that took their answer; the others were done or running. No sample twice in one batch."""
    columns: dict[str, list[Any]] = {f"p_{name}": [] for name in _FIELDS}
    for one in batch:
        for name in _OWN:
            columns[f"p_{name}"].append(getattr(one, name))
        for name in _STORED:
            columns[f"p_{name}"].append(getattr(one.stored, name))
        follow = one.next_turn
        for name, value in zip(_NEXT, (follow.key, follow.turn, follow.prompt) if follow else (None,) * 3, strict=True):
            columns[f"p_{name}"].append(value)
    return {row.id for row in connection.execute(_STORE, columns)}


_NAMES = text("""
select distinct on (sample_id) sample_id, generation_id from attempt
where sample_id = any(cast(:p_ids as bigint[])) and action = 'done' order by sample_id, fence desc""")
_KEYED = text("select id, key, state from sample where dataset_id = :p_dataset and key = any(cast(:p_keys as text[]))")


def generations(connection: Connection, sample_ids: Sequence[int]) -> dict[int, str]:
    """Sample -> the generation id of its answer, "" where none was named; those without an answer are left out."""
    return {row.sample_id: row.generation_id or "" for row in connection.execute(_NAMES, {"p_ids": list(sample_ids)})}


def keyed(connection: Connection, dataset_id: int, keys: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Key -> (sample id, state), of those that there are."""
    return {row.key: (row.id, row.state) for row in connection.execute(_KEYED, {"p_dataset": dataset_id, "p_keys": list(keys)})}
