"""Datasets: made from a plan, opened, closed, and read by whoever needs their settings."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from models.errors import FingerprintDiffers, NameRefused
from models.plan import Account, DatasetPlan
from models.states import Closed, DatasetState

NUSD = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset as processes need it: who, with which settings, open or why not."""

    id: int
    name: str
    state: DatasetState
    closed_reason: str | None
    plan: DatasetPlan
    accounts: dict[str, Account]
    fingerprint: str


_ALL = text("select id, name, state, closed_reason, settings, fingerprint from dataset order by id")
_BY_NAME = text("select id, name, fingerprint, settings, done + failed + running as begun from dataset "
                "where lower(name) = lower(:p_name) for update")


def every(connection: Connection) -> list[Dataset]:
    return [_read(row) for row in connection.execute(_ALL)]


def _read(row: Any) -> Dataset:
    settings = row.settings
    return Dataset(row.id, row.name, DatasetState(row.state), row.closed_reason,
                   DatasetPlan.model_validate(settings["plan"]),
                   {n: Account.model_validate(a) for n, a in settings["accounts"].items()}, row.fingerprint)


def put(connection: Connection, name: str, plan: DatasetPlan, accounts: dict[str, Account], *, mix: bool = False) -> int:
    """Create the dataset or bring its settings up to date; its id. Budgets, lanes and accounts may change at any time.

    FingerprintDiffers when rows exist that were made with other settings, unless `mix`.
    """
    known = connection.execute(_BY_NAME, {"p_name": name}).one_or_none()
    if known is not None and known.name != name:
        raise NameRefused(name=name, cause=f"a dataset {known.name!r} exists, which differs by upper and lower case alone")
    if known is not None and known.fingerprint != plan.fingerprint_id() and known.begun and not mix:
        raise FingerprintDiffers(dataset=name, names=", ".join(differing(known.settings["plan"], plan)))
    values = _values(name, plan, accounts)
    if known is None:
        return int(connection.execute(_INSERT, values).scalar_one())
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
  :p_short, :p_long, :p_price) returning id""")
# A raised budget reopens what a spent budget had closed; an operator's or a fault's closure stays.
_UPDATE = text("""
update dataset set settings = cast(:p_settings as jsonb), fingerprint = :p_fingerprint, token_budget = :p_budget,
  money_budget_nusd = :p_money, strict = :p_strict, short_max_tokens = :p_short, long_max_tokens = :p_long,
  short_expected = case when :p_strict then :p_short else least(short_expected, :p_short) end,
  long_expected = case when :p_strict then :p_long else least(long_expected, :p_long) end,
  margin_tokens = case when :p_strict then 0 else margin_tokens end,
  nusd_per_token = greatest(nusd_per_token, :p_price)
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


# A dataset is at its budget when nothing is in flight and what is left cannot hold one more claim of its smallest lane
# that still has samples; what fits no lane will never be claimed.
_AT_BUDGET = text("""
with left_over as (
  select d.id, d.state, d.token_budget, d.money_budget_nusd, d.running, d.closed_reason,
    d.token_budget - d.stored_tokens - d.reserved_tokens - d.margin_tokens as tokens,
    d.money_budget_nusd - d.spent_nusd - d.reserved_nusd - d.margin_nusd as nusd, d.nusd_per_token,
    least(case when exists (select from sample s where s.dataset_id = d.id and s.lane = 0 and s.state = 0)
            then case when d.strict then d.short_max_tokens else d.short_expected end end,
          case when exists (select from sample s where s.dataset_id = d.id and s.lane = 1 and s.state = 0)
            then case when d.strict then d.long_max_tokens else d.long_expected end end) as need
  from dataset d where d.state = 0 and d.running = 0)
select id, case when token_budget is not null and tokens < coalesce(need, 1) then 'budget'
  when money_budget_nusd is not null and nusd < coalesce(need, 1) * nusd_per_token then 'money' end as reason
from left_over""")


def at_budget(connection: Connection) -> dict[int, Closed]:
    """Open datasets that can take no further claim, with the budget that says so."""
    return {row.id: Closed(row.reason) for row in connection.execute(_AT_BUDGET) if row.reason}




def resume(connection: Connection, names: Iterable[str]) -> list[str]:
    """Open those of `names` that a spent budget had closed and that have room again; the names opened."""
    opened = []
    for row in connection.execute(_REOPEN, {"p_names": list(names)}):
        opened.append(row.name)
    return opened


_REOPEN = text("""
update dataset d set state = 0, closed_reason = null, closed_at = null
where name = any(cast(:p_names as text[])) and state = 1 and closed_reason in ('budget', 'money')
  and coalesce(token_budget - stored_tokens - reserved_tokens - margin_tokens, 1000000000)
      >= least(case when strict then short_max_tokens else short_expected end,
               case when strict then long_max_tokens else long_expected end)
  and coalesce(money_budget_nusd - spent_nusd - reserved_nusd - margin_nusd, 1000000000000000)
      >= least(case when strict then short_max_tokens else short_expected end,
               case when strict then long_max_tokens else long_expected end) * nusd_per_token
  and exists (select from sample s where s.dataset_id = d.id and s.state = 0)
returning name""")
