"""Claim: a worker takes samples, and what they may cost is reserved, in one statement.

Lock order decides deadlocks: samples by id, then datasets by id. The state is judged after the lock, never in the
look-up, so that a plan made under stale statistics cannot walk a partial index (measured: 8 times the CPU).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text

from models.states import Lane

_MAX_TOKENS = "coalesce(s.max_tokens, case s.lane when 0 then d.short_max_tokens else d.long_max_tokens end)"
# What one claim of sample s in dataset d reserves. Strict: the most it can cost. Forecast: what the life table expects.
NEED = f"""case when d.strict then {_MAX_TOKENS}
  else least(s.max_tokens, case s.lane when 0 then d.short_expected else d.long_expected end) end"""
_CLAIM = text(f"""
with wanted as materialized (
  select * from unnest(cast(:p_ids as bigint[]), cast(:p_accounts as text[])) as w(id, account)),
seen as materialized (
  select s.id, s.dataset_id, s.lane, s.state, s.not_before, s.max_tokens, w.account
  from wanted w join sample s on s.id = w.id order by s.id for no key update of s skip locked),
-- A worker that was frozen and declared dead takes nothing under its old name: it would be rescued, and paid for twice.
due as materialized (
  select * from seen where state = 0 and lane = :p_lane and (not_before is null or not_before <= clock_timestamp())
    and not exists (select from worker where id = :p_worker and died_at is not null)),
room as materialized (
  select d.* from dataset d where d.id = any(array(select distinct dataset_id from due)) and d.state = 0
  order by d.id for no key update),
priced as materialized (
  select s.id, s.dataset_id, s.lane, s.account,
    {_MAX_TOKENS} as max_tokens, {NEED} as need, d.nusd_per_token,
    coalesce(d.token_budget - d.stored_tokens - d.reserved_tokens - d.margin_tokens, 9000000000000000000) as tokens_left,
    coalesce(d.money_budget_nusd - d.spent_nusd - d.reserved_nusd - d.margin_nusd, 9000000000000000000) as nusd_left
  from due s join room d on d.id = s.dataset_id),
-- What is too large for the room alone stays out of the running sum, where it would keep all behind it out.
judged as materialized (
  select *, small and sum(need) filter (where small) over w <= tokens_left
    and sum(need * nusd_per_token) filter (where small) over w <= nusd_left as fits
  from (select *, need <= tokens_left and need * nusd_per_token <= nusd_left as small from priced) p
  window w as (partition by dataset_id order by id)),
fit as materialized (select * from judged where fits),
held as (
  update dataset d set reserved_tokens = d.reserved_tokens + x.tokens, reserved_nusd = d.reserved_nusd + x.nusd,
    running = d.running + x.n
  from (select dataset_id, count(*) as n, sum(need) as tokens, sum(need * nusd_per_token) as nusd from fit group by 1) x
  where d.id = x.dataset_id),
taken as (
  update sample s set state = 1, fence = s.fence + 1, worker_id = :p_worker, changed_at = clock_timestamp()
  from fit f where s.id = f.id
  returning s.id, s.fence, s.dataset_id, s.lane, s.key, s.primary_id, s.turn, f.max_tokens, s.burnt, s.possibly_paid,
    s.ignore, s.prompt, f.account, f.need, f.need * f.nusd_per_token as nusd),
opened as (
  insert into attempt (sample_id, fence, dataset_id, worker_id, lane, account, reserved_tokens, reserved_nusd)
  select id, fence, dataset_id, :p_worker, lane, account, need, nusd from taken),
-- Whoever brought a hint for these may wait for room; for all others they are free to be hinted again.
refused as (
  update sample s set hinted_at = null from judged j where s.id = j.id and not j.fits returning s.id)
select t.id, t.fence, t.dataset_id, t.lane, t.key, t.primary_id, t.turn, t.max_tokens, t.burnt, t.possibly_paid,
  t.ignore, t.prompt, p.ids as prefix_ids
from taken t left join partial p on p.sample_id = t.id and p.exact
union all select id, null, null, null, null, null, null, null, null, null, null, null, null from refused
""")  # noqa: S608  (only our own expressions are spliced in)


@dataclass(frozen=True, slots=True)
class Claim:
    """A sample in a worker's hands, valid while its fence is the sample's."""

    id: int
    fence: int
    dataset_id: int
    lane: int
    key: str
    primary_id: str
    turn: int
    max_tokens: int
    burnt: int
    possibly_paid: int
    ignore: list[str] | None
    prompt: bytes
    prefix_ids: bytes | None


def claim(connection: Connection, wanted: Sequence[tuple[int, str]], worker_id: int, lane: Lane) -> dict[int, Claim]:
    """Those of `wanted` (sample id, account) that are queued in this lane, due, in an open dataset and within its budgets.

    All others are left as they are, and so is a row that another transaction holds at this moment.
    """
    return claim_or_refuse(connection, wanted, worker_id, lane)[0]


def claim_or_refuse(connection: Connection, wanted: Sequence[tuple[int, str]], worker_id: int,
                    lane: Lane) -> tuple[dict[int, Claim], set[int]]:
    """As `claim`, with the ids that only lacked room in their dataset's budget: answers in flight may yet give some back."""
    unique: dict[int, str] = dict(wanted)
    rows = connection.execute(_CLAIM, {"p_ids": list(unique), "p_accounts": list(unique.values()), "p_worker": worker_id,
                                       "p_lane": int(lane)}).all()
    return {row.id: Claim(*row) for row in rows if row.fence is not None}, {row.id for row in rows if row.fence is None}
