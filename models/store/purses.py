"""One sum of dollars for several datasets: dealt out to them anew every second, so that claims look at their own row alone.

What a dataset may spend is what it has spent and holds, and an equal part of what nobody has. The parts never add up to
more than the purse, whoever claims meanwhile; without a reaper they only stay as they are.
"""

from collections.abc import Iterable

from sqlalchemy import Connection, text

# A dataset that reserved no money until now reserves it at its plan's price: dollars a million are thousands of nusd a token.
_SHARE = text("""
update dataset d set
  settings = settings || jsonb_build_object('purse',
    jsonb_build_object('name', cast(:p_name as text), 'usd', cast(:p_usd as float8))),
  nusd_per_token = greatest(nusd_per_token, ceil((settings #>> '{plan,usd_per_million_tokens}')::float8 * 1000)::bigint)
where id = any(cast(:p_ids as int[]))""")
_DEAL = text("""
with held as materialized (
  select id, settings #>> '{purse,name}' as purse, (settings #>> '{purse,usd}')::float8 * 1e9 as nusd,
    (settings #>> '{plan,money_budget_usd}')::float8 * 1e9 as own, spent_nusd + reserved_nusd + margin_nusd as used,
    samples > done + failed + running and (state = 0 or :p_closed and closed_reason in ('budget', 'money')) as wants
  from dataset where settings ? 'purse' order by id for no key update),
purse as (
  select purse, greatest(0, max(nusd) - sum(used)) / greatest(1, count(*) filter (where wants)) as part from held group by 1),
dealt as (
  select h.id, floor(least(coalesce(own, 9e18), used + case when wants then part else 0 end))::bigint as nusd
  from held h join purse p on p.purse = h.purse)
update dataset d set money_budget_nusd = dealt.nusd from dealt
where d.id = dealt.id and d.money_budget_nusd is distinct from dealt.nusd""")


def share(connection: Connection, ids: Iterable[int], usd: float) -> None:
    """From now on these datasets spend from one purse; put again, a dataset has left it."""
    ids = sorted(ids)
    connection.execute(_SHARE, {"p_ids": ids, "p_name": "-".join(map(str, ids)), "p_usd": usd})
    connection.execute(_DEAL, {"p_closed": True})


def deal(connection: Connection) -> None:
    connection.execute(_DEAL, {"p_closed": False})
