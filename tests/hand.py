"""A test's hand on the store: makes datasets and samples, claims and settles as a worker would, and adds the rows up."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncEngine

from models import blob
from models.base import perform, perform_whole
from models.conversation import document
from models.plan import Account, DatasetPlan, LanePlan
from models.states import Event, Lane
from models.store import claims, datasets, samples, settlements
from models.store.claims import Claim
from models.store.samples import NewSample
from models.store.settlements import Settlement, Stored

ACCOUNTS = {"home": Account(kind="vllm", base_url="http://127.0.0.1:9/v1")}
SHORT_MAX, LONG_MAX = 100, 400

# Each counter of a dataset beside what the rows say it must be.
SUMS = """
select d.samples, (select count(*) from sample s where s.dataset_id = d.id) as samples_,
  d.running, (select count(*) from sample s where s.dataset_id = d.id and s.state = 1) as running_,
  d.running as open, (select count(*) from attempt a where a.dataset_id = d.id and a.ended_at is null) as open_,
  d.done, (select count(*) from sample s where s.dataset_id = d.id and s.state = 2) as done_,
  d.done as completions, (select count(*) from completion c where c.dataset_id = d.id) as completions_,
  d.failed, (select count(*) from sample s where s.dataset_id = d.id and s.state = 3) as failed_,
  d.stored_tokens, (select coalesce(sum(n_tokens), 0) from completion c where c.dataset_id = d.id) as stored_tokens_,
  d.useful_tokens,
    (select coalesce(sum(n_tokens), 0) from completion c where c.dataset_id = d.id and c.trainable and c.grade > 0)
      as useful_tokens_,
  d.billed_tokens, (select coalesce(sum(coalesce(prompt_tokens, 0) + coalesce(completion_tokens, 0)), 0)
    from attempt a where a.dataset_id = d.id) as billed_tokens_,
  d.spent_nusd, (select coalesce(sum(cost_nusd), 0) from attempt a where a.dataset_id = d.id) as spent_nusd_,
  d.reserved_tokens, (select coalesce(sum(reserved_tokens), 0) from attempt a
    where a.dataset_id = d.id and a.ended_at is null) as reserved_tokens_,
  d.reserved_nusd, (select coalesce(sum(reserved_nusd), 0) from attempt a
    where a.dataset_id = d.id and a.ended_at is null) as reserved_nusd_
from dataset d order by d.id
"""


def plan(**changes: Any) -> DatasetPlan:
    return DatasetPlan(**{"profile": "smollm2", "model": "a/model", "account": "home",
                          "short": LanePlan(max_tokens=SHORT_MAX, concurrency=8),
                          "long": LanePlan(max_tokens=LONG_MAX, concurrency=4), **changes})


def stored(n_tokens: int = 10, **changes: Any) -> Stored:
    row = Stored(grade=5, version="v1", trainable=True, truncated=False, finish_reason="stop", model="a/model",
                 account="home", fingerprint="f", sampling="{}", n_prompt=3, n_tokens=n_tokens, spans="[]",
                 prompt_ids=blob.pack_ids([1, 2, 3]), ids=blob.pack_ids(range(n_tokens)), raw=blob.pack_json({"a": 1}))
    return replace(row, **changes)


def done(claim: Claim, n_tokens: int = 10, *, row: Stored | None = None, **changes: Any) -> Settlement:
    """A good answer: 3 prompt tokens, n_tokens of completion, 1,000 nano-dollars a token."""
    return replace(Settlement(claim.id, claim.fence, Event.DONE, "ok", burns=True, basis="usage", prompt_tokens=3,
                              completion_tokens=n_tokens, cost_nusd=1_000 * n_tokens, provider="P", model="a/model",
                              status=200, latency_ms=5, stored=row or stored(n_tokens)), **changes)


def ended(claim: Claim, event: Event, code: str = "http_500", **changes: Any) -> Settlement:
    return replace(Settlement(claim.id, claim.fence, event, code), **changes)


class Hand:
    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine

    async def do(self, verb: Any, *args: Any, **kwargs: Any) -> Any:
        return await perform(self.engine, verb, *args, **kwargs)

    async def whole(self, verb: Any, *args: Any, **kwargs: Any) -> Any:
        return await perform_whole(self.engine, verb, *args, **kwargs)

    async def all(self, sql: str, **values: Any) -> Sequence[Any]:
        async with self.engine.connect() as connection:
            result = await connection.execute(text(sql), values)
            return result.all() if result.returns_rows else []

    async def one(self, sql: str, **values: Any) -> Any:
        [row] = await self.all(sql, **values)
        return row

    async def sample(self, sample_id: int) -> Any:
        return await self.one("select * from sample where id = :id", id=sample_id)

    async def dataset(self, name: str = "B1", **changes: Any) -> int:
        return int(await self.whole(datasets.put, name, plan(**changes), ACCOUNTS))

    async def samples(self, dataset_id: int, n: int = 1, *, lane: Lane = Lane.SHORT, max_tokens: int | None = None,
                      prompt: dict[str, Any] | None = None, prefix: str = "k") -> list[int]:
        packed = blob.pack_json(prompt or document([{"role": "user", "content": "why?"}]))
        keys = [f"{prefix}{i:07}" for i in range(n)]
        await self.do(samples.add, dataset_id, [NewSample(k, k, 0, lane, max_tokens, packed) for k in keys])
        rows = await self.all("select id from sample where dataset_id = :d and key = any(cast(:keys as text[])) order by id",
                              d=dataset_id, keys=keys)
        return [row.id for row in rows]

    async def claim(self, ids: Iterable[int], worker: int = 1, lane: Lane = Lane.SHORT) -> dict[int, Claim]:
        return await self.do(claims.claim, [(i, "home") for i in ids], worker, lane)  # type: ignore[no-any-return]

    async def claimed(self, sample_id: int, worker: int = 1, lane: Lane = Lane.SHORT) -> Claim:
        return (await self.claim([sample_id], worker, lane))[sample_id]

    async def settle(self, *what: Settlement) -> set[int]:
        return await self.do(settlements.settle, what)  # type: ignore[no-any-return]

    async def check_counters(self) -> None:
        """Every counter of every dataset is the sum over its rows, and no sample has two attempts open."""
        for row in await self.all(SUMS):
            counters = row._mapping
            wrong = {k: (counters[k], counters[k + "_"]) for k in counters if k + "_" in counters
                     and counters[k] != counters[k + "_"]}
            assert not wrong, f"(counter, sum over rows): {wrong}"
