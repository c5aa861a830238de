"""The rule of the adaptive limit against simulated accounts, in simulated time."""

import heapq
import itertools
import random
from dataclasses import dataclass, field

import pytest

from workers.limit import Limit, Report

SYNC_S, REFUSAL_S, SURVIVED_S = 0.15, 0.1, 2.0


@dataclass
class Account:
    """A provider with a hidden capacity. It refuses, or (`queues`) takes everything and lets the surplus wait."""

    capacity: object                       # time -> calls at once
    broken: object = lambda t: ""          # time -> "", "refused" or "broken": everything fails in that way
    queues: bool = False
    lasts_s: tuple[float, float] = (5.0, 60.0)
    noise: float = 0.0                     # share of the calls that are refused or broken whatever the load
    unlucky: str = "refused"
    running: int = 0
    queue: list = field(default_factory=list)


@dataclass
class Worker:
    name: str
    slots: int
    report: Report
    in_flight: int = 0
    queued: int = 0


@dataclass
class Simulation:
    account: Account
    workers: int
    seed: int = 1
    slots: int = 2_500
    start: int = 50
    most: int = 5_000
    calls: list = field(default_factory=list)       # (time, outcome)
    useful: list = field(default_factory=list)      # (time, running of the account)
    worst: float = 0.0                              # most in flight just granted over the limit then

    def run(self, seconds: float) -> "Simulation":
        self.chance, self.events, self.order = random.Random(self.seed), [], itertools.count()
        self.limit = Limit.new(self.start, self.most)
        self.crew = [Worker(f"w{n}", self.slots // self.workers, Report(f"w{n}", 0, 0)) for n in range(self.workers)]
        for n, worker in enumerate(self.crew):
            self.at(1.0 + n * SYNC_S / self.workers, self.sync, worker)
        while self.events and self.events[0][0] < seconds + 1.0:
            self.now, _, what, args = heapq.heappop(self.events)
            what(*args)
        return self

    def at(self, when, what, *args):
        heapq.heappush(self.events, (when, next(self.order), what, args))

    def sync(self, worker):
        report = worker.report
        report.in_flight, report.want, report.queued = worker.in_flight, worker.slots - worker.in_flight, worker.queued
        grant = self.limit.step(report, self.now, self.chance.random)
        if grant:
            allowed = self.limit.ceiling if self.limit.streak > 1 else self.limit.limit
            self.worst = max(self.worst, self.limit.in_flight / max(1.0, allowed))
        worker.report = Report(worker.name, 0, 0)
        for _ in range(grant):
            self.call(worker)
        self.useful.append((self.now - 1.0, self.account.running))
        self.at(self.now + SYNC_S, self.sync, worker)

    def call(self, worker):
        worker.in_flight += 1
        account = self.account
        outcome = account.broken(self.now - 1.0)
        full = account.running >= account.capacity(self.now - 1.0)
        if not outcome and full and account.queues:
            worker.queued += 1
            account.queue.append((worker, self.now))
            return
        if not outcome and self.chance.random() < account.noise:
            outcome = account.unlucky
        outcome = outcome or ("refused" if full else "ok")
        self.calls.append((self.now - 1.0, outcome))
        if outcome == "ok":
            self.serve(worker, self.now)
        else:
            self.at(self.now + REFUSAL_S, self.fail, worker, outcome, self.now)

    def serve(self, worker, began):
        self.account.running += 1
        lasts_s = self.chance.uniform(*self.account.lasts_s)
        self.at(self.now + min(lasts_s, SURVIVED_S), self.accepted, worker, began)
        self.at(self.now + lasts_s, self.end, worker, began)

    def accepted(self, worker, began):
        worker.report.accepted += 1
        worker.report.accepted_age_s = min(worker.report.accepted_age_s, self.now - began)

    def end(self, worker, began):
        worker.in_flight -= 1
        self.account.running -= 1
        worker.report.answered += 1
        worker.report.answered_age_s = min(worker.report.answered_age_s, self.now - began)
        while self.account.queue and self.account.running < self.account.capacity(self.now - 1.0):
            waiting, since = self.account.queue.pop(0)
            waiting.queued -= 1
            self.calls.append((self.now - 1.0, "ok"))
            self.serve(waiting, since)

    def fail(self, worker, outcome, began):
        worker.in_flight -= 1
        worker.report.failed_age_s = min(worker.report.failed_age_s, self.now - began)
        setattr(worker.report, outcome, getattr(worker.report, outcome) + 1)

    # what a test asks

    def reached(self, share, since, until=1e9):
        """Seconds after `since` until the account is used to `share` of its capacity."""
        for t, running in self.useful:
            if since <= t < until and running >= share * self.account.capacity(t):
                return t - since
        return float("inf")

    def fallen(self, since):
        """Seconds after `since` until no call is running over the capacity, and until 85% of it is used from there on."""
        drained = next(t for t, running in self.useful if t >= since and running <= self.account.capacity(t))
        steady = [t for t, running in self.useful if drained <= t < since + 60 and running < 0.85 * self.account.capacity(t)]
        return drained - since, (max(steady) if steady else drained) - since

    def used(self, since, until):
        """Mean share of the capacity in use."""
        shares = [min(1.0, running / self.account.capacity(t)) for t, running in self.useful if since <= t < until]
        return sum(shares) / len(shares)

    def refused(self, since=0.0, until=1e9):
        calls = [outcome for t, outcome in self.calls if since <= t < until]
        return sum(outcome != "ok" for outcome in calls) / max(1, len(calls))

    def started(self, since, until):
        return sum(since <= t < until for t, _ in self.calls)


def falls_and_rises(t):
    return 800 if t < 120 else 300 if t < 240 else 1_500


@pytest.mark.parametrize("workers", [1, 4, 16])
@pytest.mark.parametrize("seed", range(2))
def test_a_capacity_that_falls_and_rises_is_found_and_used(workers, seed):
    run = Simulation(Account(falls_and_rises), workers, seed).run(360)
    drained, steady = run.fallen(120)
    assert run.reached(0.85, since=0) <= 30
    assert steady <= drained + 10
    assert run.reached(0.85, since=240) <= 30
    assert min(run.used(40, 120), run.used(170, 240), run.used(285, 360)) >= 0.95
    assert run.refused() <= 0.02
    assert run.refused(120, 240) <= 0.05
    assert run.worst <= 1.01


@pytest.mark.parametrize("workers", [1, 4])
def test_an_engine_that_never_refuses_is_found_by_its_queue(workers):
    run = Simulation(Account(falls_and_rises, queues=True), workers).run(360)
    drained, steady = run.fallen(120)
    assert run.reached(0.85, since=0) <= 40
    assert steady <= drained + 15
    assert run.reached(0.85, since=240) <= 40
    assert min(run.used(40, 120), run.used(170, 240), run.used(285, 360)) >= 0.95
    assert max(running for t, running in run.useful if t > 60) <= 1_500


@pytest.mark.parametrize("fault", ["broken", "refused"])
@pytest.mark.parametrize(("lasts_s", "calls"), [((5.0, 60.0), 100), ((0.5, 2.0), 0.05 * 60 * 640)])
def test_an_outage_costs_few_calls_and_teaches_no_ceiling(fault, lasts_s, calls):
    run = Simulation(Account(lambda t: 800, lambda t: fault if 100 <= t < 160 else "", lasts_s=lasts_s), 4).run(260)
    before = run.started(60, 100) / 40
    assert sum(outcome != "ok" for t, outcome in run.calls if 100 <= t < 160) <= calls
    assert run.started(160, 160 + 30) / 30 >= 0.7 * before   # a mean from the very end of the outage on
    assert run.started(185, 225) / 40 >= 0.9 * before
    assert run.worst <= 1.01


def test_all_workers_are_served():
    run = Simulation(Account(lambda t: 400), 8).run(200)
    shares = [worker.in_flight for worker in run.crew]
    assert min(shares) >= 0.6 * max(shares)


def test_a_lasting_fall_far_below_is_not_taken_for_an_outage_twice():
    run = Simulation(Account(lambda t: 800 if t < 100 else 40), 4).run(400)
    assert sum(outcome == "refused" for t, outcome in run.calls if t >= 100) <= 400
    assert run.used(200, 400) >= 0.85
    assert run.limit.limit < 80


@pytest.mark.parametrize("lasts_s", [(5.0, 60.0), (0.5, 2.0)])
@pytest.mark.parametrize(("unlucky", "noise"), [("refused", 0.02), ("refused", 0.05), ("broken", 0.15)])
@pytest.mark.parametrize("seed", range(2))
def test_a_few_failures_at_any_load_are_no_capacity_and_no_outage(lasts_s, unlucky, noise, seed):
    run = Simulation(Account(lambda t: 800, lasts_s=lasts_s, noise=noise, unlucky=unlucky), 4, seed, slots=600).run(300)
    running = [n for t, n in run.useful if t >= 100]
    assert sum(running) / len(running) >= 540


@pytest.mark.parametrize("seed", range(2))
def test_a_capacity_is_found_among_such_failures_too(seed):
    run = Simulation(Account(lambda t: 400, noise=0.05), 4, seed).run(300)
    assert run.used(100, 300) >= 0.9
    assert run.refused(100, 300) <= 0.05 + 0.07


# one rule at a time


def a_limit(limit=100.0, most=1_000, **facts):
    known = Limit.new(1, most)
    known.limit, known.seen_at = limit, 100.0
    for name, value in facts.items():
        setattr(known, name, value)
    return known


def test_a_limit_that_is_not_used_does_not_grow():
    known = a_limit(limit=100.0)
    for n in range(100):
        known.step(Report("w", in_flight=50), 100 + n * 0.15)
    assert known.limit == 100.0


def test_a_refusal_while_little_is_in_flight_is_the_capacity_all_the_same():
    known = a_limit(limit=800.0)
    known.step(Report("w", in_flight=300, refused=4, failed_age_s=0.1), 100.1)
    assert (known.ceiling, known.limit) == (300, 240)


def test_one_refusal_is_the_capacity_close_to_the_ceiling_alone():
    low, near = a_limit(limit=750.0, ceiling=800.0), a_limit(limit=750.0, ceiling=800.0)
    low.step(Report("w", in_flight=700, refused=1, failed_age_s=0.1), 100.1)
    near.step(Report("w", in_flight=740, refused=1, failed_age_s=0.1), 100.1)
    assert (low.ceiling, near.ceiling) == (800, 740)


def test_refusals_that_came_and_went_below_the_ceiling_make_the_next_one_at_it_no_capacity():
    known = a_limit(limit=750.0, ceiling=800.0)
    for n in range(4):
        known.step(Report("w", in_flight=700, accepted=40, accepted_age_s=2.0, refused=1, failed_age_s=0.1), 101 + n)
        known.step(Report("w", in_flight=700, accepted=40, accepted_age_s=2.0), 101.5 + n)
    known.step(Report("w", in_flight=740, refused=1, failed_age_s=0.1), 105.0)
    assert known.ceiling == 800
    known.step(Report("w", in_flight=740, refused=3, failed_age_s=0.1), 105.2)
    assert known.ceiling == 740


def test_a_broken_reply_is_no_refusal():
    known = a_limit(limit=800.0, ceiling=900.0)
    known.step(Report("w", in_flight=700, broken=3, failed_age_s=0.1), 100.1)
    assert (known.ceiling, known.cut_at) == (900, 0)


def test_failures_of_calls_begun_before_the_last_failure_are_one_failure():
    known = a_limit()
    for n in range(10):
        known.step(Report("w", in_flight=50, broken=5, failed_age_s=1.0 + n * 0.15), 100.1 + n * 0.15)
    assert known.streak == 1


def test_an_outage_is_probed_by_one_call_at_a_time_ever_more_rarely():
    known, probes, granted = a_limit(), [], 1
    for n in range(2_000):
        now = 100 + n * 0.1
        granted = known.step(Report("w", want=50, broken=granted, failed_age_s=0.05), now, lambda: 0.5)
        if known.streak > 1:
            assert granted <= 1
            probes += [now] * granted
    pauses = [b - a for a, b in itertools.pairwise(probes)]
    assert max(pauses) <= 6.0
    assert pauses[-1] >= 2.0
    assert len(probes) < 80


def test_a_worker_not_heard_of_gives_up_its_slots():
    known = a_limit(fixed=10, paced=False)
    known.step(Report("lost", in_flight=10), 100.0)
    assert known.step(Report("w", want=5), 101.0) == 0
    assert known.step(Report("w", want=5), 100.0 + 16) == 5


def test_alone_a_worker_keeps_its_part_rounded_up():
    known = a_limit(limit=5.0, ceiling=6.0, fixed=5, most=7)
    for name in ("w1", "w2"):
        known.step(Report(name, in_flight=1), 100.0)
    mine = known.alone("w1")
    assert (mine.limit, mine.ceiling, mine.fixed, mine.most, mine.in_flight) == (3, 3, 3, 4, 1)
    assert known.in_flight == 2


def test_the_limit_stays_between_one_and_the_maximum():
    known = a_limit(limit=2.0, most=3)
    for n in range(50):
        known.step(Report("w", in_flight=3, want=9), 100 + n)
    assert known.limit == 3
    for n in range(50):
        known.step(Report("w", in_flight=1, refused=1, failed_age_s=0.1), 200 + n)
    assert known.limit >= 1
