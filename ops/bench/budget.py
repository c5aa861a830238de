"""Landing on a budget: real claims, settlements and forecasts on a real database; an answer is a wait as long as its tokens take.

    python -m ops.bench.budget [--case 10M/2000] [--shape lognormal] [--seeds 3] [--speed 2] [--at-once 8] [--lost 0.02]

Tokens come at 100 a second, `speed` times faster than the clock; refreshes are once a second of the clock, so that a high
speed makes it harder than life. Lengths as in docs/decisions/0004: 50 to 10,240 tokens, heavy-tailed.
"""

import argparse
import asyncio
import itertools
import random
import shutil
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncEngine

from models import blob
from models.base import connect_async, perform, perform_whole
from models.plan import Account, DatasetPlan, LanePlan
from models.states import Closed, Event, Lane
from models.store import datasets, forecasts, samples, settlements, sweeps, totals
from models.store.claims import Claim
from models.store.samples import NewSample
from models.store.schema import migrate
from models.store.settlements import Settlement, Stored
from ops import services
from ops.bench.report import table
from workers.ledger import NO_ROOM, Ledger
from workers.spool import Spool


@dataclass(frozen=True, slots=True)
class Case:
    """budget: in tokens, of each dataset; with `money` what so many cost at PRICE. slots: of all datasets together."""

    budget: int
    slots: int
    datasets: int = 1
    money: bool = False
    strict: bool = False

    @property
    def usd(self) -> float:
        return self.budget * PRICE / 1e9


CASES = {
    "10M/2000": Case(10_000_000, 2_000), "10M/500": Case(10_000_000, 500), "1M/500": Case(1_000_000, 500),
    "1M/500, strict": Case(1_000_000, 500, strict=True), "$4/500": Case(2_000_000, 500, money=True),
    "8 of 2.5M/500": Case(2_500_000, 500, datasets=8)}
CAP, FEWEST = 10_240, 50
TOKENS_PER_S = 100.0
PRICE, PRICES = 2_000, (1_500, 2_500)       # in billionths of a dollar a token: on average, and of two hosts
ROOM_PAUSE_S = 0.1
NO_IDS = blob.pack_ids([])


def lognormal(dice: random.Random) -> float:
    return dice.lognormvariate(7.4, 1.05)


def bimodal(dice: random.Random) -> float:
    return dice.gauss(400, 120) if dice.random() < 0.7 else dice.gauss(8_000, 1_200)


@dataclass(frozen=True, slots=True)
class Shape:
    """drift: how much longer answers are at the end than at the beginning; faster: the provider's speed from half way on."""

    length: Callable[[random.Random], float]
    drift: float = 1.0
    faster: float = 1.0


SHAPES = {"lognormal": Shape(lognormal), "bimodal": Shape(bimodal), "faster": Shape(lognormal, faster=2.0),
          "drift": Shape(lognormal, drift=2.5)}


@dataclass(slots=True)
class Pool:
    """The slots that datasets share. full_until: share of all budgets written, also in flight, when nine in ten of them
    were last in use."""

    slots: int
    budget: int
    asked: int = 0      # slots for which a claim is under way
    most: int = 0
    used: float = 0.0
    full_until: float = 0.0
    calls: dict[asyncio.Task[None], tuple[float, float]] = field(default_factory=dict)     # begun at, tokens a second

    @property
    def running(self) -> int:
        return len(self.calls)

    def take(self, call: asyncio.Task[None], tokens_per_s: float) -> None:
        call.add_done_callback(self.calls.pop)
        self.calls[call] = time.monotonic(), tokens_per_s
        self.most = max(self.most, self.running)

    def look(self) -> None:
        if self.running >= 0.9 * self.slots:
            now = time.monotonic()
            self.full_until = (self.used + sum((now - at) * rate for at, rate in self.calls.values())) / self.budget


@dataclass(slots=True)
class Run:
    """One dataset on its way to its budget. used: tokens that count against it."""

    engine: AsyncEngine
    ledger: Ledger
    dataset_id: int
    waiting: deque[int]
    case: Case
    pool: Pool
    shape: Shape
    dice: random.Random
    speed: float
    lost: float
    used: float = 0.0
    running: int = 0

    async def land(self) -> None:
        while not await self._ended():
            if not await self._fill():
                await asyncio.sleep(ROOM_PAUSE_S)
        await perform_whole(self.engine, datasets.close, self.dataset_id, Closed.BUDGET)

    async def _ended(self) -> bool:
        return self.running == 0 and self.dataset_id in await perform(self.engine, datasets.at_budget)

    async def _fill(self) -> int:
        free = self.pool.slots - self.pool.running - self.pool.asked
        wanted = [self.waiting.popleft() for _ in range(min(free, len(self.waiting), 100 // self.case.datasets))]
        self.pool.asked += len(wanted)
        got = await asyncio.gather(*(self.ledger.claim(i, "none") for i in wanted))
        self.pool.asked -= len(wanted)
        taken = [claim for claim in got if isinstance(claim, Claim)]
        self.waiting.extendleft(reversed([i for i, claim in zip(wanted, got, strict=True) if claim is NO_ROOM]))
        for claim in taken:
            self.pool.take(asyncio.create_task(self._call(claim)), TOKENS_PER_S * self._speed)
        self.running += len(taken)
        self.pool.look()
        return len(taken)

    @property
    def _speed(self) -> float:
        return self.speed * (self.shape.faster if self.used > 0.5 * self.case.budget else 1.0)

    async def _call(self, claim: Claim) -> None:
        progress = self.used / self.case.budget
        length = self.shape.length(self.dice) * (1 + (self.shape.drift - 1) * progress)
        tokens = round(min(claim.max_tokens, max(FEWEST, length)))
        price, seconds = self.dice.choice(PRICES), tokens / TOKENS_PER_S / self._speed
        if self.dice.random() < self.lost:
            await asyncio.sleep(seconds / 2)
            await perform(self.engine, settlements.settle, [_lost(claim, tokens // 2, price)])
            self.ledger.held.pop(claim.id, None)
            self.waiting.append(claim.id)
            self._count(tokens // 2 * price / PRICE if self.case.money else 0)
        else:
            await asyncio.sleep(seconds)
            await self.ledger.settle(_done(claim, tokens, price))
            self._count(tokens * price / PRICE if self.case.money else tokens)

    def _count(self, tokens: float) -> None:
        self.used += tokens
        self.pool.used += tokens
        self.running -= 1


def _done(claim: Claim, tokens: int, price: int) -> Settlement:
    row = Stored(grade=5, version="", trainable=True, truncated=False, finish_reason="stop", model="", account="none",
                 fingerprint="", sampling="{}", n_prompt=0, n_tokens=tokens, spans="[]", prompt_ids=NO_IDS, ids=NO_IDS,
                 raw=NO_IDS)
    return Settlement(claim.id, claim.fence, Event.DONE, "ok", basis="usage", completion_tokens=tokens,
                      cost_nusd=tokens * price, stored=row)


def _lost(claim: Claim, tokens: int, price: int) -> Settlement:
    return Settlement(claim.id, claim.fence, Event.RESCUE, "worker_lost", basis="estimate", completion_tokens=tokens,
                      cost_nusd=tokens * price)


@contextmanager
def _database() -> Iterator[str]:
    home = Path(tempfile.mkdtemp(prefix="draftmill-bench-"))
    home.chmod(0o755)
    try:
        with services.start(home) as running:
            migrate(running.database_url)
            yield running.database_url
    finally:
        shutil.rmtree(home, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Landed:
    """share: stored tokens, or dollars spent, of the budget. most: in flight. full_until: see Pool."""

    case: str
    shape: str
    seed: int
    share: float
    most: int
    full_until: float
    seconds: float

    def text(self) -> str:
        return (f"{self.case:14} {self.shape:10} {self.seed:4} {100 * self.share:8.2f}% {self.most:6} "
                f"{100 * self.full_until:8.0f}% {self.seconds:8.0f}")


def shown(found: Sequence[Landed]) -> str:
    """One line a case and shape."""
    groups = dict[tuple[str, str], list[Landed]]()
    for landed in found:
        groups.setdefault((landed.case, landed.shape), []).append(landed)
    return table(["budget / in flight", "lengths", "landings", "landed at %: least", "mean", "most", "outside 99 to 101",
                  "most in flight", "full until %"], [
        [case, shape, len(g), f"{100 * min(x.share for x in g):.2f}", f"{100 * sum(x.share for x in g) / len(g):.2f}",
         f"{100 * max(x.share for x in g):.2f}", sum(not 0.99 <= x.share <= 1.01 for x in g), max(x.most for x in g),
         f"{100 * min(x.full_until for x in g):.0f}"]
        for (case, shape), g in groups.items()])


async def _landed(url: str, case: str, shape: str, seed: int, speed: float, lost: float) -> list[Landed]:
    """One landing for each dataset of the case."""
    known, stem = CASES[case], f"{''.join(filter(str.isalnum, case))}-{shape}-{seed}"
    engine = connect_async(url, size=4)
    worker = await perform(engine, sweeps.join, name=stem, host="", pid=0, lane=0, concurrency=known.slots)
    spool = Spool(Path(tempfile.gettempdir()) / "draftmill-bench-spool", stem)
    ledger = Ledger(engine, worker, Lane.SHORT, spool)
    ledger.start()
    pool, runs = Pool(known.slots, known.budget * known.datasets), dict[str, Run]()
    for n in range(known.datasets):
        name = f"{stem}-{n}"
        dataset_id, waiting = await _prepared(engine, known, name)
        dice = random.Random(100 * seed + n)
        runs[name] = Run(engine, ledger, dataset_id, waiting, known, pool, SHAPES[shape], dice, speed, lost)
    begun, refresher = time.monotonic(), asyncio.create_task(_refresh(engine))
    try:
        await asyncio.gather(*(run.land() for run in runs.values()))
    finally:
        refresher.cancel()
    found = await perform(engine, totals.datasets, list(runs))
    await ledger.stop()
    spool.close()
    await engine.dispose()
    budget = known.usd if known.money else known.budget
    return [Landed(case, shape, seed, (total.spent_usd if known.money else total.stored_tokens) / budget, pool.most,
                   pool.full_until, time.monotonic() - begun) for total in found]


async def _refresh(engine: AsyncEngine) -> None:
    while True:
        await perform_whole(engine, forecasts.refresh)
        await asyncio.sleep(0.3)


async def _prepared(engine: AsyncEngine, case: Case, name: str) -> tuple[int, deque[int]]:
    lanes = {"short": LanePlan(max_tokens=CAP, concurrency=case.slots), "long": LanePlan(max_tokens=CAP, concurrency=1)}
    budget = {"money_budget_usd": case.usd} if case.money else {"token_budget": case.budget}
    plan = DatasetPlan(profile="none", model="none", account="none", usd_per_million_tokens=PRICE / 1e3,
                       budget_mode="strict" if case.strict else "forecast", **budget, **lanes)
    dataset_id = await perform_whole(engine, datasets.put, name, plan, {"none": Account(kind="vllm", base_url="http://none")})
    rows = case.budget // 500
    for start in range(0, rows, 1_000):
        await perform(engine, samples.add, dataset_id, [
            NewSample(str(i), str(i), 0, Lane.SHORT, None, NO_IDS) for i in range(start, start + 1_000)])
    return dataset_id, deque(await perform(engine, samples.hintable, dataset_id, Lane.SHORT, rows, 0.0))


def landings(cases: Sequence[str], shapes: Sequence[str], seeds: Sequence[int], *, speed: float, lost: float = 0.0,
             at_once: int = 1) -> list[Landed]:
    """So many runs at once on one database; each is printed when it has landed."""
    async def all_of(url: str) -> list[Landed]:
        places = asyncio.Semaphore(at_once)

        async def one(case: str, shape: str, seed: int) -> list[Landed]:
            async with places:
                found = await _landed(url, case, shape, seed, speed, lost)
            print(*(landed.text() for landed in found), sep="\n", flush=True)
            return found

        runs = await asyncio.gather(*(one(*which) for which in itertools.product(cases, shapes, seeds)))
        return [landed for run in runs for landed in run]

    with _database() as url:
        return asyncio.run(all_of(url))


def main() -> None:
    parser = argparse.ArgumentParser("ops.bench.budget", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--case", choices=CASES, nargs="+", default=["10M/2000", "1M/500"])
    parser.add_argument("--shape", choices=SHAPES, nargs="+", default=list(SHAPES))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--speed", type=float, default=2.0)
    parser.add_argument("--at-once", type=int, default=4, help="runs at the same time")
    parser.add_argument("--lost", type=float, default=0.0, help="share of calls whose worker dies half way")
    given = parser.parse_args()
    print(f"{'case':14} {'lengths':10} seed {'landed':>9} {'most':>6} {'full until':>9} {'seconds':>7}")
    found = landings(given.case, given.shape, range(given.first_seed, given.first_seed + given.seeds), speed=given.speed,
                     lost=given.lost, at_once=given.at_once)
    print(shown(found))


if __name__ == "__main__":
    main()
