"""Landing on a budget: real claims, settlements and forecasts on a real database; an answer is a wait as long as its tokens take.

    python -m ops.bench.budget [--case 10M/2000] [--shape lognormal] [--seeds 3] [--speed 5] [--lost 0.05] [--strict]

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
from models.states import Event, Lane
from models.store import datasets, forecasts, samples, settlements, sweeps, totals
from models.store.claims import Claim
from models.store.samples import NewSample
from models.store.schema import migrate
from models.store.settlements import Settlement, Stored
from ops import services
from ops.bench.report import table
from workers.ledger import NO_ROOM, Ledger
from workers.spool import Spool

CASES = {"10M/2000": (10_000_000, 2_000), "10M/500": (10_000_000, 500), "1M/500": (1_000_000, 500)}
CAP, FEWEST = 10_240, 50
TOKENS_PER_S = 100.0
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
class Run:
    """One dataset on its way to its budget."""

    engine: AsyncEngine
    ledger: Ledger
    dataset_id: int
    waiting: deque[int]
    budget: int
    slots: int
    shape: Shape
    dice: random.Random
    speed: float
    lost: float
    stored: int = 0
    running: int = 0
    most: int = 0
    full_until: float = 0.0     # share of the budget written, also in flight, when nine in ten slots were last in use
    _calls: dict[asyncio.Task[None], tuple[float, float]] = field(default_factory=dict)     # begun at, tokens a second

    async def land(self) -> None:
        refresher = asyncio.create_task(self._refresh())
        try:
            while not await self._ended():
                if not await self._fill():
                    await asyncio.sleep(ROOM_PAUSE_S)
        finally:
            refresher.cancel()

    async def _ended(self) -> bool:
        return self.running == 0 and self.dataset_id in await perform(self.engine, datasets.at_budget)

    async def _fill(self) -> int:
        wanted = [self.waiting.popleft() for _ in range(min(self.slots - self.running, len(self.waiting), 100))]
        got = await asyncio.gather(*(self.ledger.claim(i, "none") for i in wanted))
        taken = [claim for claim in got if isinstance(claim, Claim)]
        self.waiting.extendleft(reversed([i for i, claim in zip(wanted, got, strict=True) if claim is NO_ROOM]))
        for claim in taken:
            call = asyncio.create_task(self._call(claim))
            call.add_done_callback(self._calls.pop)
            self._calls[call] = time.monotonic(), TOKENS_PER_S * self._speed
        self.running += len(taken)
        self.most = max(self.most, self.running)
        if self.running >= 0.9 * self.slots:
            now = time.monotonic()
            self.full_until = (self.stored + sum((now - at) * rate for at, rate in self._calls.values())) / self.budget
        return len(taken)

    @property
    def _speed(self) -> float:
        return self.speed * (self.shape.faster if self.stored > 0.5 * self.budget else 1.0)

    async def _call(self, claim: Claim) -> None:
        progress = self.stored / self.budget
        length = self.shape.length(self.dice) * (1 + (self.shape.drift - 1) * progress)
        tokens = round(min(claim.max_tokens, max(FEWEST, length)))
        seconds = tokens / TOKENS_PER_S / self._speed
        if self.dice.random() < self.lost:
            await asyncio.sleep(seconds / 2)
            await perform(self.engine, settlements.settle, [_lost(claim, tokens // 2)])
            self.ledger.held.pop(claim.id, None)
            self.waiting.append(claim.id)
        else:
            await asyncio.sleep(seconds)
            await self.ledger.settle(_done(claim, tokens))
            self.stored += tokens
        self.running -= 1

    async def _refresh(self) -> None:
        while True:
            await perform_whole(self.engine, forecasts.refresh)
            await asyncio.sleep(0.3)


def _done(claim: Claim, tokens: int) -> Settlement:
    row = Stored(grade=5, version="", trainable=True, truncated=False, finish_reason="stop", model="", account="none",
                 fingerprint="", sampling="{}", n_prompt=0, n_tokens=tokens, spans="[]", prompt_ids=NO_IDS, ids=NO_IDS,
                 raw=NO_IDS)
    return Settlement(claim.id, claim.fence, Event.DONE, "ok", basis="usage", completion_tokens=tokens, stored=row)


def _lost(claim: Claim, tokens: int) -> Settlement:
    return Settlement(claim.id, claim.fence, Event.RESCUE, "worker_lost", basis="estimate", completion_tokens=tokens)


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
    """share: stored tokens of the budget. most: in flight. full_until: see Run."""

    case: str
    shape: str
    seed: int
    share: float
    most: int
    full_until: float
    seconds: float

    def text(self) -> str:
        return (f"{self.case:9} {self.shape:10} {self.seed:4} {100 * self.share:8.2f}% {self.most:6} "
                f"{100 * self.full_until:8.0f}% {self.seconds:8.0f}")


def shown(found: Sequence[Landed]) -> str:
    """One line a case and shape."""
    groups = dict[tuple[str, str], list[Landed]]()
    for landed in found:
        groups.setdefault((landed.case, landed.shape), []).append(landed)
    return table(["budget / in flight", "lengths", "seeds", "landed at %: least", "mean", "most", "outside 99 to 101",
                  "most in flight", "full until %"], [
        [case, shape, len(g), f"{100 * min(x.share for x in g):.2f}", f"{100 * sum(x.share for x in g) / len(g):.2f}",
         f"{100 * max(x.share for x in g):.2f}", sum(not 0.99 <= x.share <= 1.01 for x in g), max(x.most for x in g),
         f"{100 * min(x.full_until for x in g):.0f}"]
        for (case, shape), g in groups.items()])


async def _landed(url: str, name: str, case: str, shape: str, seed: int, speed: float, lost: float,
                  strict: bool) -> Landed:
    budget, slots = CASES[case]
    engine = connect_async(url)
    lanes = {"short": LanePlan(max_tokens=CAP, concurrency=slots), "long": LanePlan(max_tokens=CAP, concurrency=1)}
    plan = DatasetPlan(profile="none", model="none", account="none", token_budget=budget,
                       budget_mode="strict" if strict else "forecast", **lanes)
    dataset_id = await perform_whole(engine, datasets.put, name, plan, {"none": Account(kind="vllm", base_url="http://none")})
    await _add(engine, dataset_id, budget // 500)
    ids = await perform(engine, samples.hintable, dataset_id, Lane.SHORT, budget)
    worker = await perform(engine, sweeps.join, name=name, host="", pid=0, lane=0, concurrency=slots)
    spool = Spool(Path(tempfile.gettempdir()) / "draftmill-bench-spool", name)
    ledger = Ledger(engine, worker, Lane.SHORT, spool)
    ledger.start()
    run = Run(engine, ledger, dataset_id, deque(ids), budget, slots, SHAPES[shape], random.Random(seed), speed, lost)
    begun = time.monotonic()
    await run.land()
    [total] = await perform(engine, totals.datasets, [name])
    await ledger.stop()
    spool.close()
    await engine.dispose()
    return Landed(case, shape, seed, total.stored_tokens / budget, run.most, run.full_until, time.monotonic() - begun)


def landings(cases: Sequence[str], shapes: Sequence[str], seeds: Sequence[int], *, speed: float, lost: float = 0.0,
             strict: bool = False) -> list[Landed]:
    """One after the other on one database; each is printed when it has landed."""
    found = list[Landed]()
    with _database() as url:
        for case, shape, seed in itertools.product(cases, shapes, seeds):
            name = f"{case.replace('/', '-')}-{shape}-{seed}"
            found.append(asyncio.run(_landed(url, name, case, shape, seed, speed, lost, strict)))
            print(found[-1].text(), flush=True)
    return found


async def _add(engine: AsyncEngine, dataset_id: int, n: int) -> None:
    for start in range(0, n, 1_000):
        await perform(engine, samples.add, dataset_id, [
            NewSample(str(i), str(i), 0, Lane.SHORT, None, NO_IDS) for i in range(start, start + 1_000)])


def main() -> None:
    parser = argparse.ArgumentParser("ops.bench.budget", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--case", choices=CASES, nargs="+", default=["10M/2000", "1M/500"])
    parser.add_argument("--shape", choices=SHAPES, nargs="+", default=list(SHAPES))
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--speed", type=float, default=5.0)
    parser.add_argument("--lost", type=float, default=0.0, help="share of calls whose worker dies half way")
    parser.add_argument("--strict", action="store_true")
    given = parser.parse_args()
    print(f"{'case':9} {'lengths':10} seed {'landed':>9} {'most':>6} {'full until':>9} {'seconds':>7}")
    found = landings(given.case, given.shape, range(given.first_seed, given.first_seed + given.seeds), speed=given.speed,
                     lost=given.lost, strict=given.strict)
    print(shown(found))


if __name__ == "__main__":
    main()
