"""What a provider's own books say of calls whose price was first guessed."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, text


@dataclass(frozen=True, slots=True)
class Bill:
    """One call as its provider booked it; the call's sample and fence name its attempt."""

    id: int
    fence: int
    prompt_tokens: int
    completion_tokens: int
    cost_nusd: int
    provider: str = ""


@dataclass(frozen=True, slots=True)
class Unbilled:
    """A call that was booked as an estimate, and the name its provider knows it by."""

    id: int
    fence: int
    dataset_id: int
    account: str
    generation_id: str


# Asked for first at once, then when the call is three times as old as at the last time, for two days: a dozen times in all.
# Whoever takes a call moves its next time on, so that another worker asks again should this one die.
_DUE = text("""
with due as materialized (
  select sample_id, fence from attempt where bill_at <= clock_timestamp() order by bill_at limit :p_n
  for no key update skip locked)
update attempt a set bill_at = case when a.ended_at > clock_timestamp() - interval '2 days'
  then clock_timestamp() + greatest(interval '5 seconds', 2 * (clock_timestamp() - a.ended_at)) end
from due where a.sample_id = due.sample_id and a.fence = due.fence
returning a.sample_id, a.fence, a.dataset_id, a.account, a.generation_id""")


def due(connection: Connection, n: int) -> list[Unbilled]:
    """Up to n calls whose bill is to be asked for now, whichever worker made them. No two callers get the same."""
    return [Unbilled(row.sample_id, row.fence, row.dataset_id, row.account or "", row.generation_id)
            for row in connection.execute(_DUE, {"p_n": n})]


_CORRECT = text("""
with b as materialized (
  select * from unnest(cast(:p_ids as bigint[]), cast(:p_fences as int[]), cast(:p_prompts as int[]),
    cast(:p_completions as int[]), cast(:p_costs as bigint[]), cast(:p_providers as text[]))
    as b(id, fence, prompt_tokens, completion_tokens, cost_nusd, provider)),
was as materialized (
  select a.sample_id, a.fence, a.dataset_id, coalesce(a.prompt_tokens, 0) + coalesce(a.completion_tokens, 0) as billed,
    coalesce(a.cost_nusd, 0) as cost
  from b join attempt a on a.sample_id = b.id and a.fence = b.fence
  where a.basis = 'estimate' and a.ended_at is not null order by a.sample_id, a.fence for no key update of a),
mended as (
  update attempt a set basis = 'usage', bill_at = null, prompt_tokens = b.prompt_tokens, completion_tokens = b.completion_tokens,
    cost_nusd = b.cost_nusd, provider = coalesce(nullif(b.provider, ''), a.provider)
  from b join was w on w.sample_id = b.id and w.fence = b.fence where a.sample_id = b.id and a.fence = b.fence
  returning w.dataset_id, b.prompt_tokens + b.completion_tokens - w.billed as billed, b.cost_nusd - w.cost as cost),
stored as (
  update completion c set billed_prompt_tokens = b.prompt_tokens, billed_tokens = b.completion_tokens, cost_nusd = b.cost_nusd
  from b join was w on w.sample_id = b.id and w.fence = b.fence where c.sample_id = b.id and c.fence = b.fence),
sums as materialized (
  select dataset_id, sum(billed) as billed, sum(cost) as cost, count(*) as n from mended group by 1),
locked as materialized (
  select id from dataset where id = any(array(select dataset_id from sums)) order by id for no key update),
counted as (
  update dataset d set billed_tokens = d.billed_tokens + x.billed, spent_nusd = d.spent_nusd + x.cost
  from sums x join locked l on l.id = x.dataset_id where d.id = x.dataset_id)
select coalesce(sum(n), 0) as n from sums""")


def correct(connection: Connection, bills: Sequence[Bill]) -> int:
    """Replace estimates by bills, in the attempts and in the sums of their datasets; how many. Repeating changes nothing."""
    return int(connection.execute(_CORRECT, {
        "p_ids": [b.id for b in bills], "p_fences": [b.fence for b in bills], "p_prompts": [b.prompt_tokens for b in bills],
        "p_completions": [b.completion_tokens for b in bills], "p_costs": [b.cost_nusd for b in bills],
        "p_providers": [b.provider for b in bills]}).scalar_one())
