"""Datasets: made from a plan, opened, closed, and read by whoever needs their settings."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, text

from models.errors import FingerprintDiffers, NameRefused
from models.plan import Account, DatasetPlan
from models.states import Closed, DatasetState, Lane
from models.store.claims import NEED

NUSD = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset as processes need it: who, with which settings, open or why not.

    room: lane -> how many claims its budgets would admit now; None where it has no budget.
    excluded: providers left out because they drifted from the others -> why.
    usd_per_token: what a billed token has cost here, None while nothing was paid. mean_tokens: of stored answers.
    """

    id: int
    name: str
    state: DatasetState
    closed_reason: str | None
    plan: DatasetPlan
    accounts: dict[str, Account]
    fingerprint: str
    room: dict[Lane, int] | None = None
    usd_per_token: float | None = None
    mean_tokens: int | None = None
    excluded: dict[str, str] = field(default_factory=dict)

    def priced(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Dollars for what was paid and not said: as this dataset's ledger has it, else the plan's price."""
        return (prompt_tokens + completion_tokens) * (self.usd_per_token or self.plan.usd_per_million_tokens / 1e6)


_ALL = text("""
select id, name, state, closed_reason, settings, fingerprint,
  (nullif(spent_nusd, 0) / 1e9 / nullif(billed_tokens, 0))::float8 as usd_per_token,
  stored_tokens / nullif(done, 0) as mean_tokens,
  least(tokens / case when strict then short_max_tokens else short_expected end,
    nusd / nullif(case when strict then short_max_tokens else short_expected end * nusd_per_token, 0)) as room_short,
  least(tokens / case when strict then long_max_tokens else long_expected end,
    nusd / nullif(case when strict then long_max_tokens else long_expected end * nusd_per_token, 0)) as room_long
from (select *, token_budget - stored_tokens - reserved_tokens - margin_tokens as tokens,
        money_budget_nusd - spent_nusd - reserved_nusd - margin_nusd as nusd from dataset) d order by id""")
_BY_NAME = text("select id, name, fingerprint, settings, done + failed + running as begun from dataset "
                "where lower(name) = lower(:p_name) for update")


def every(connection: Connection) -> list[Dataset]:
    return [_read(row) for row in connection.execute(_ALL)]


def _read(row: Any) -> Dataset:
    settings = row.settings
    return Dataset(row.id, row.name, DatasetState(row.state), row.closed_reason,
                   DatasetPlan.model_validate(settings["plan"]),
                   {n: Account.model_validate(a) for n, a in settings["accounts"].items()}, row.fingerprint,
                   None if row.room_short is None else {Lane.SHORT: max(0, row.room_short), Lane.LONG: max(0, row.room_long)},
                   row.usd_per_token, row.mean_tokens, settings.get("excluded", {}))


def put(connection: Connection, name: str, plan: DatasetPlan, accounts: dict[str, Account], *, mix: bool = False) -> int:
    """Create the dataset or bring its settings up to date; its id. Budgets, lanes and accounts may change at any time.

    FingerprintDiffers when rows exist that were made with other settings, unless `mix`.
    """
    values = _values(name, plan, accounts)
    new = connection.execute(_INSERT, values).scalar_one_or_none()      # first, so that two may create it at once
    if new is not None:
        return int(new)
    known = connection.execute(_BY_NAME, {"p_name": name}).one()
    if known.name != name:
        raise NameRefused(name=name, cause=f"a dataset {known.name!r} exists, which differs by upper and lower case alone")
    if known.fingerprint != plan.fingerprint_id() and known.begun and not mix:
        raise FingerprintDiffers(dataset=name, names=", ".join(differing(known.settings["plan"], plan)))
    connection.execute(_UPDATE, {**values, "p_id": known.id})
    return int(known.id)


def differing(stored: dict[str, Any], plan: DatasetPlan) -> list[str]:
    old, new = DatasetPlan.model_validate(stored).fingerprint(), plan.fingerprint()
    return [f"{k} ({json.dumps(old.get(k))} before, {json.dumps(new.get(k))} now)" for k in new if old.get(k) != new.get(k)]


def _values(name: str, plan: DatasetPlan, accounts: dict[str, Account]) -> dict[str, Any]:
    settings = {"plan": json.loads(plan.model_dump_json(exclude={"prompts"})),
                "accounts": {n: json.loads(accounts[n].model_dump_json()) for n in plan.account_names()}}
    strict = plan.budget_mode == "strict"
    return {
        "p_name": name, "p_settings": json.dumps(settings), "p_fingerprint": plan.fingerprint_id(),
        "p_budget": plan.token_budget, "p_strict": strict, "p_short": plan.short.max_tokens, "p_long": plan.long.max_tokens,
        "p_money": None if plan.money_budget_usd is None else round(plan.money_budget_usd * NUSD),
        "p_price": round(plan.usd_per_million_tokens * NUSD / 1_000_000) if plan.money_budget_usd is not None else 0,
    }


_INSERT = text("""
insert into dataset (name, settings, fingerprint, token_budget, money_budget_nusd, strict, short_max_tokens,
  long_max_tokens, short_expected, long_expected, nusd_per_token)
values (:p_name, cast(:p_settings as jsonb), :p_fingerprint, :p_budget, :p_money, :p_strict, :p_short, :p_long,
  :p_short, :p_long, :p_price) on conflict (lower(name)) do nothing returning id""")
_UPDATE = text("""
update dataset set settings = cast(:p_settings as jsonb)
    || case when settings ? 'excluded' then jsonb_build_object('excluded', settings -> 'excluded') else '{}' end,
  fingerprint = :p_fingerprint, token_budget = :p_budget,
  money_budget_nusd = :p_money, strict = :p_strict, short_max_tokens = :p_short, long_max_tokens = :p_long,
  short_expected = case when :p_strict then :p_short else least(short_expected, :p_short) end,
  long_expected = case when :p_strict then :p_long else least(long_expected, :p_long) end,
  margin_tokens = case when :p_strict then 0 else margin_tokens end,
  nusd_per_token = case when :p_strict then :p_price else greatest(nusd_per_token, :p_price) end
where id = :p_id""")

_CLOSE = text("""
update dataset set state = 1, closed_reason = :p_reason, closed_at = clock_timestamp()
where id = :p_id and state = 0 returning id""")
_OPEN = text("""
update dataset set state = 0, closed_reason = null, closed_at = null where id = :p_id and state = 1 returning id""")


def close(connection: Connection, dataset_id: int, reason: Closed | str) -> bool:
    """True when this call closed it. Its queued samples stay queued and wait."""
    return connection.execute(_CLOSE, {"p_id": dataset_id, "p_reason": str(reason)}).first() is not None


def open_again(connection: Connection, dataset_id: int) -> bool:
    return connection.execute(_OPEN, {"p_id": dataset_id}).first() is not None


# Nothing is in flight, so nothing is reserved, and a margin that remains belongs to the last refresh. What no queued sample
# fits into will never be claimed.
_AT_BUDGET = text(f"""
with idle as (
  select d.*, coalesce(d.token_budget - d.stored_tokens, 9000000000000000000) as tokens,
    coalesce(d.money_budget_nusd - d.spent_nusd, 9000000000000000000) as nusd,
    exists (select from sample s where s.dataset_id = d.id and s.state = 0) as waiting
  from dataset d where d.state = 0 and d.running = 0)
select id, case
  when tokens < 1 or waiting and not exists (
    select from sample s where s.dataset_id = d.id and s.state = 0 and {NEED} <= tokens) then 'budget'
  when nusd < 1 or waiting and not exists (
    select from sample s where s.dataset_id = d.id and s.state = 0 and {NEED} <= tokens and {NEED} * nusd_per_token <= nusd)
    then 'money' end as reason
from idle d""")  # noqa: S608  (only our own expressions are spliced in)


def at_budget(connection: Connection) -> dict[int, Closed]:
    """Open datasets that can take no further claim, with the budget that says so."""
    return {row.id: Closed(row.reason) for row in connection.execute(_AT_BUDGET) if row.reason}


def resume(connection: Connection, names: Iterable[str]) -> list[str]:
    """Open those of `names` that a spent budget had closed and that have room for a queued sample again; the names opened."""
    return [row.name for row in connection.execute(_REOPEN, {"p_names": list(names)})]


_REOPEN = text(f"""
update dataset d set state = 0, closed_reason = null, closed_at = null
where name = any(cast(:p_names as text[])) and state = 1 and closed_reason in ('budget', 'money')
  and exists (select from sample s where s.dataset_id = d.id and s.state = 0
    and {NEED} <= coalesce(token_budget - stored_tokens - reserved_tokens, 9000000000000000000)
    and {NEED} * nusd_per_token <= coalesce(money_budget_nusd - spent_nusd - reserved_nusd, 9000000000000000000))
returning name""")  # noqa: S608  (only our own expressions are spliced in)
