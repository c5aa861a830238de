"""The limiter on a real Valkey: shared by workers, alone without Redis, paused and overridden by hand."""

import asyncio
import contextlib
import heapq
import random

import pytest
from redis.asyncio import Redis

from workers.limiter import Limiter, Outcome
from workers.shared import Limits


class Clock:
    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
async def redis(redis_url):
    redis = Redis.from_url(redis_url)
    yield redis
    await redis.aclose()


@pytest.fixture
async def samples():
    """Starts tasks that take a slot, do `what` and give it back; ends what is left of them."""
    tasks = []

    def start(limiter, n, what=None, outcome=Outcome.OK):
        async def sample():
            if not await limiter.acquire(3_600):
                return False
            ended = outcome
            try:
                ended = await (what or asyncio.Event().wait)() or outcome
            finally:
                limiter.release(ended if isinstance(ended, Outcome) else outcome)
            return True

        started = [asyncio.create_task(sample()) for _ in range(n)]
        tasks.extend(started)
        return started

    yield start
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def synced(clock, *limiters, seconds, each_s=0.15):
    """Lets simulated time pass with all limiters reporting."""
    for _ in range(round(seconds / each_s)):
        clock.now += each_s
        for limiter in limiters:
            await limiter.sync()
        for _ in range(3):
            await asyncio.sleep(0)


async def at_once(outcome=Outcome.OK):
    return outcome


def a_limiter(redis, clock, worker="w1", most=100, **options):
    return Limiter(redis, "acme", worker, most, prefix="t:", clock=clock, **options)


async def test_a_slot_is_granted_and_given_back(redis):
    limiter = Limiter(redis, "acme", "w1", 10, prefix="t:")
    limiter.start()
    assert await limiter.acquire(5)
    assert limiter.state()["mine"] == 1
    limiter.release(Outcome.OK)
    assert limiter.state()["mine"] == 0
    await limiter.close()


async def test_no_slot_in_time_is_false_and_leaves_nothing_behind(redis):
    limiter = Limiter(redis, "acme", "w1", 10, prefix="t:")
    assert not await limiter.acquire(0.05)
    assert limiter.state()["waiting"] == limiter.state()["mine"] == 0


async def test_a_cancelled_wait_gives_its_slot_to_the_next(redis, clock, samples):
    limiter = a_limiter(redis, clock, most=1, start=1)
    first, second = samples(limiter, 2)
    await asyncio.sleep(0)
    clock.now += 1
    await limiter.sync()           # grants the first, which is cancelled before it could run
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    await synced(clock, limiter, seconds=1)
    assert limiter.state()["mine"] == 1
    assert not second.done()


async def test_an_engine_that_starts_at_its_maximum_is_filled_at_once(redis, clock, samples):
    limiter = a_limiter(redis, clock, most=100, start=100)
    samples(limiter, 200)
    await synced(clock, limiter, seconds=0.3)
    assert limiter.state()["mine"] == 100


async def test_an_unknown_account_starts_at_fifty_and_doubles_while_used(redis, clock, samples):
    limiter = a_limiter(redis, clock, most=5_000)
    samples(limiter, 1_000)
    await synced(clock, limiter, seconds=4)
    assert 25 <= limiter.state()["mine"] <= 60
    await synced(clock, limiter, seconds=8)
    assert 100 <= limiter.state()["mine"] <= 250


async def test_two_workers_share_one_limit(redis, clock, samples):
    one, two = (a_limiter(redis, clock, name, most=60, start=60) for name in ("w1", "w2"))
    for limiter in (one, two):
        samples(limiter, 100)
    await synced(clock, one, two, seconds=1)
    assert one.state()["mine"] + two.state()["mine"] == 60
    assert one.state()["workers"] == two.state()["workers"]


async def test_a_worker_that_comes_late_gets_its_part(redis, clock, samples):
    one, two = (a_limiter(redis, clock, name, most=60, start=60) for name in ("w1", "w2"))

    def soon():
        return asyncio.sleep(0.001)

    running = samples(one, 60)
    await synced(clock, one, seconds=1)
    samples(two, 400, soon)
    for task in running[:20]:
        task.cancel()
    samples(one, 400, soon)
    await synced(clock, one, two, seconds=1.5)
    assert two.state()["workers"]["w2"] > 0


async def test_a_refusal_is_the_capacity(redis, clock, samples):
    limiter = a_limiter(redis, clock, most=100, start=100)
    samples(limiter, 79)
    await synced(clock, limiter, seconds=1)
    samples(limiter, 4, lambda: at_once(Outcome.REFUSED))
    await synced(clock, limiter, seconds=0.6)
    assert limiter.state()["ceiling"] == 79
    assert 63 <= limiter.state()["limit"] <= 65


async def test_a_paused_account_is_probed_once_in_a_while_and_resumes_when_answered(redis, clock, samples):
    one, two = (a_limiter(redis, clock, name, most=50, start=50) for name in ("w1", "w2"))
    await one.pause("http_401", 20)
    await one.sync()
    answers = []

    async def unauthorised():
        answers.append(clock.now)
        return Outcome.NONE

    for limiter in (one, two):
        samples(limiter, 40, unauthorised)
    await synced(clock, one, two, seconds=70)
    assert len(answers) == 3
    assert one.state()["halted"] == two.state()["halted"] == "http_401"
    for limiter in (one, two):
        samples(limiter, 40, at_once)
    await synced(clock, one, two, seconds=60 * 20, each_s=1)
    assert one.state()["halted"] == ""
    assert one.state()["waiting"] == two.state()["waiting"] == 0


async def test_answers_of_calls_begun_before_a_pause_do_not_end_it(redis, clock, samples):
    limiter = a_limiter(redis, clock, most=50, start=50)
    go_on = asyncio.Event()
    samples(limiter, 10, go_on.wait)
    await synced(clock, limiter, seconds=1)
    await limiter.pause("http_401", 20)
    await synced(clock, limiter, seconds=1)
    go_on.set()
    await synced(clock, limiter, seconds=5)
    assert limiter.state()["mine"] == 0
    assert limiter.state()["halted"] == "http_401"


async def test_a_person_reads_overrides_and_resumes(redis, clock, samples):
    limits = Limits(redis, "t:")
    limiter = a_limiter(redis, clock, most=50, start=50)
    await limits.override("acme", 7)
    samples(limiter, 40)
    await synced(clock, limiter, seconds=2)
    assert limiter.state()["mine"] == 7
    assert (await limits.states())["acme"] | {"workers": {}} == {
        "limit": 7, "fixed": True, "ceiling": None, "max_in_flight": 50, "in_flight": 7, "queued": 0, "halted": "",
        "probing": False, "workers": {}}
    await limits.override("acme", None)
    await synced(clock, limiter, seconds=20)
    assert limiter.state()["mine"] == 40
    await limiter.pause("no_credit", 20)
    await synced(clock, limiter, seconds=0.3)
    assert (await limits.states())["acme"]["halted"] == "no_credit"
    await limits.resume("acme")
    assert (await limits.states())["acme"]["halted"] == ""


@pytest.fixture
async def mortal(broker):
    """A client of a Redis that is going to be killed."""
    redis = Redis.from_url(broker.url)
    yield redis
    await redis.aclose()


async def test_without_redis_each_worker_keeps_its_part(broker, mortal, clock, samples):
    redis = mortal
    one, two = (a_limiter(redis, clock, name, most=61, start=61) for name in ("w1", "w2"))
    for limiter in (one, two):
        await limiter.sync()
    await one.sync()
    broker.kill()
    for limiter in (one, two):
        samples(limiter, 100)
    await synced(clock, one, two, seconds=1)
    assert one.state()["alone"]
    assert one.state()["mine"] == two.state()["mine"] == 31
    broker.start(empty=True)
    await synced(clock, one, two, seconds=4)
    assert not one.state()["alone"]
    assert one.state()["in_flight"] == 62   # one over, until one of them ends


async def test_an_emptied_redis_forgets_no_ceiling(redis, clock, samples):
    limiter = a_limiter(redis, clock, most=100, start=100)
    samples(limiter, 79)
    await synced(clock, limiter, seconds=1)
    samples(limiter, 4, lambda: at_once(Outcome.REFUSED))
    await synced(clock, limiter, seconds=0.6)
    await redis.flushall()
    await redis.script_flush()
    await synced(clock, limiter, seconds=0.3)
    assert limiter.state()["ceiling"] == 79
    assert not limiter.state()["alone"]


async def test_junk_in_its_place_is_written_over(redis, clock):
    await redis.set("t:limit:acme", b"\xff{")
    limiter = a_limiter(redis, clock)
    await limiter.sync()
    assert not limiter.state()["alone"]
    assert (await Limits(redis, "t:").states())["acme"]["limit"] == 50


async def test_workers_that_write_at_the_same_moment_lose_no_slot(redis, clock, samples):
    limiters = [a_limiter(redis, clock, f"w{n}", most=64, start=64) for n in range(8)]
    for limiter in limiters:
        samples(limiter, 30)
    for _ in range(10):
        clock.now += 0.15
        await asyncio.gather(*(limiter.sync() for limiter in limiters))
    assert sum(limiter.state()["mine"] for limiter in limiters) == 64
    assert not any(limiter.state()["alone"] for limiter in limiters)


class Provider:
    """A hidden capacity that falls and rises; calls take 5 to 60 s of simulated time, refusals 0.1 s."""

    def __init__(self, clock):
        self.clock, self.began, self.chance = clock, clock.now, random.Random(7)
        self.running, self.calls, self.used, self.sleepers = 0, [], [], []

    @property
    def capacity(self):
        t = self.clock.now - self.began
        return 800 if t < 120 else 300 if t < 240 else 1_500

    async def ask(self):
        refused = self.running >= self.capacity
        self.calls.append((self.clock.now - self.began, refused))
        if refused:
            await self.sleep(0.1)
            return Outcome.REFUSED
        self.running += 1
        await self.sleep(self.chance.uniform(5, 60))
        self.running -= 1
        return Outcome.OK

    async def sleep(self, seconds):
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self.sleepers, (self.clock.now + seconds, id(woken), woken))
        await woken

    def wake(self):
        while self.sleepers and self.sleepers[0][0] <= self.clock.now:
            _, _, woken = heapq.heappop(self.sleepers)
            if not woken.done():
                woken.set_result(None)
        self.used.append((self.clock.now - self.began, self.running / self.capacity))


@pytest.mark.parametrize("workers", [1, 4])
async def test_a_capacity_that_falls_and_rises_is_found_through_redis(redis, clock, workers):
    limiters = [a_limiter(redis, clock, f"w{n}", most=5_000) for n in range(workers)]
    provider = Provider(clock)

    async def slot(limiter):
        while await limiter.acquire(3_600):
            limiter.release(await provider.ask())

    tasks = [asyncio.create_task(slot(limiter)) for limiter in limiters for _ in range(2_400 // workers)]
    for tick in range(360 * 20):
        clock.now += 0.05
        provider.wake()
        await asyncio.sleep(0)
        for limiter in limiters[tick % 3::3]:   # each reports every 0.15 s
            await limiter.sync()
            await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

    def used(since, until):
        shares = [min(1.0, share) for t, share in provider.used if since <= t < until]
        return sum(shares) / len(shares)

    assert next(t for t, share in provider.used if share >= 0.85) <= 30
    assert next(t for t, share in provider.used if t >= 240 and share >= 0.85) <= 270
    assert min(used(40, 120), used(170, 240), used(285, 360)) >= 0.95
    assert sum(refused for _, refused in provider.calls) <= 0.02 * len(provider.calls)
    falling = [refused for t, refused in provider.calls if 120 <= t < 240]
    assert sum(falling) <= 0.05 * len(falling)
