"""Providers of a dataset: how their newest calls went, and which are left out for it."""

import json
from collections.abc import Mapping

from sqlalchemy import Connection, text

from models.health import Health

NEWEST = 3_000       # calls that tell the present
_HEALTH = text("""
with newest as materialized (
  select * from attempt where dataset_id = :p_id and ended_at is not null order by ended_at desc limit :p_newest)
select a.provider, count(*) as calls, count(*) filter (where a.action in ('done', 'promote')) as ok, count(c.sample_id) as rows,
  count(*) filter (where c.grade = 0 or c.flags && array['prompt_tokens_mismatch', 'token_count_mismatch']) as mismatched,
  count(*) filter (where c.truncated) as cut,
  count(*) filter (where 'refusal' = any(c.flags) or a.code in ('refused', 'content_filtered')) as refused,
  count(*) filter (where c.flags && array['excluded_provider', 'wrong_model']) as off_plan
from newest a left join completion c on c.sample_id = a.sample_id and c.fence = a.fence
where a.provider <> '' and a.action not in ('snooze', 'release', 'rescue') group by 1""")
_OPEN = text("select id, settings -> 'excluded' as excluded from dataset where state = 0 and done > 0")
_EXCLUDE = text("""
update dataset set settings = jsonb_set(settings, '{excluded}', coalesce(settings -> 'excluded', '{}') || cast(:p_new as jsonb))
where id = :p_id""")


def opened(connection: Connection) -> dict[int, dict[str, str]]:
    """Open datasets with answers -> whom they leave out already, and why."""
    return {row.id: row.excluded or {} for row in connection.execute(_OPEN)}


def health(connection: Connection, dataset_id: int) -> list[Health]:
    return [Health(*row) for row in connection.execute(_HEALTH, {"p_id": dataset_id, "p_newest": NEWEST})]


def exclude(connection: Connection, dataset_id: int, reasons: Mapping[str, str]) -> None:
    """Leave these out from now on, whatever settings are put later."""
    connection.execute(_EXCLUDE, {"p_id": dataset_id, "p_new": json.dumps(dict(reasons))})
