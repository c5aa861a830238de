"""Failed and cut samples as people ask about them: by cause, lane and provider, with examples. Nothing here writes."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, text

from models.states import Lane
from models.store.datasets import NUSD


@dataclass(frozen=True, slots=True)
class Example:
    """One failed sample, without a word of what it asks or was answered."""

    id: int
    key: str
    lane: str
    tries: int
    provider: str
    status: int | None
    tokens: int | None
    usd: float
    ago_s: float


@dataclass(frozen=True, slots=True)
class Cause:
    code: str
    count: int
    by_lane: dict[str, int]
    by_provider: dict[str, int]
    examples: list[Example]


_LAST = """
from sample s left join attempt a on a.sample_id = s.id and a.fence = s.fence where s.dataset_id = :p_id and s.state = 3"""
_COUNTS = text(f"""
select coalesce(s.reason, '?') as code, s.lane, coalesce(nullif(a.provider, ''), '?') as provider, count(*) as n
{_LAST} group by 1, 2, 3""")
_EXAMPLES = text(f"""
select * from (
  select coalesce(s.reason, '?') as code, s.id, s.key, s.lane, s.burnt, coalesce(a.provider, '') as provider, a.status,
    a.completion_tokens, coalesce(a.cost_nusd, 0) as nusd,
    extract(epoch from clock_timestamp() - s.changed_at)::float8 as ago,
    row_number() over (partition by s.reason order by s.changed_at desc, s.id) as place
  {_LAST}) x where place <= :p_n order by code, place""")  # noqa: S608


def causes(connection: Connection, dataset_id: int, examples: int = 3) -> list[Cause]:
    """Most frequent first, each with its newest examples."""
    lanes: dict[str, dict[str, int]] = {}
    providers: dict[str, dict[str, int]] = {}
    for row in connection.execute(_COUNTS, {"p_id": dataset_id}):
        for sums, name in ((lanes, Lane(row.lane).label), (providers, row.provider)):
            of = sums.setdefault(row.code, {})
            of[name] = of.get(name, 0) + row.n
    shown: dict[str, list[Example]] = {}
    for row in connection.execute(_EXAMPLES, {"p_id": dataset_id, "p_n": examples}):
        shown.setdefault(row.code, []).append(_example(row))
    found = [Cause(code, sum(by.values()), by, dict(sorted(providers[code].items(), key=lambda p: -p[1])), shown.get(code, []))
             for code, by in lanes.items()]
    return sorted(found, key=lambda c: (-c.count, c.code))


def _example(row: Any) -> Example:
    return Example(row.id, row.key, Lane(row.lane).label, row.burnt, row.provider, row.status, row.completion_tokens,
                   float(row.nusd) / NUSD, row.ago)


@dataclass(frozen=True, slots=True)
class Failure:
    dataset: str
    key: str
    lane: str
    code: str
    provider: str
    ago_s: float


_LATEST = text("""
select d.name, s.key, s.lane, coalesce(s.reason, '?') as code, coalesce(a.provider, '') as provider,
  extract(epoch from clock_timestamp() - s.changed_at)::float8 as ago
from dataset d join sample s on s.dataset_id = d.id and s.state = 3
left join attempt a on a.sample_id = s.id and a.fence = s.fence
where cast(:p_names as text[]) is null or d.name = any(cast(:p_names as text[]))
order by s.changed_at desc, s.id desc limit :p_n""")


def latest(connection: Connection, names: list[str] | None = None, n: int = 5) -> list[Failure]:
    """The samples that failed last, newest first."""
    return [Failure(r.name, r.key, Lane(r.lane).label, r.code, r.provider, r.ago)
            for r in connection.execute(_LATEST, {"p_names": names, "p_n": n})]


@dataclass(frozen=True, slots=True)
class Facets:
    """What there is to choose from: name -> how many samples."""

    causes: dict[str, int]
    lanes: dict[str, int]
    providers: dict[str, int]
    grades: dict[str, int]


_CUT = text("""
select s.lane, coalesce(nullif(c.provider, ''), '?') as provider, c.grade, count(*) as n
from completion c join sample s on s.id = c.sample_id where c.dataset_id = :p_id and c.truncated and s.state = 2
group by 1, 2, 3""")


def facets(connection: Connection, dataset_id: int, *, truncated: bool = False) -> Facets:
    """Of the failed samples, or of the done ones that were cut."""
    found = Facets({}, {}, {}, {})

    def add(sums: dict[str, int], name: str, n: int) -> None:
        sums[name] = sums.get(name, 0) + n

    for row in connection.execute(_CUT if truncated else _COUNTS, {"p_id": dataset_id}):
        add(found.lanes, Lane(row.lane).label, row.n)
        add(found.providers, row.provider, row.n)
        if truncated:
            add(found.grades, str(row.grade), row.n)
        else:
            add(found.causes, row.code, row.n)
    return Facets(*(dict(sorted(sums.items(), key=lambda s: (-s[1], s[0])))
                    for sums in (found.causes, found.lanes, found.providers, found.grades)))


_PROMPTS = text("select id, prompt from sample where id = any(cast(:p_ids as bigint[]))")


def prompts(connection: Connection, ids: list[int]) -> dict[int, bytes]:
    """Packed prompt documents, for a page that was allowed to show them."""
    return {row.id: row.prompt for row in connection.execute(_PROMPTS, {"p_ids": ids})}
