"""How many calls an account takes, learnt from its refusals: the rule, pure. `limiter` shares it between workers.

    slow start   from `start`, doubling every 4 s while the limit is really used, until the first refusal
    refusal      what is in flight at a refusal is the capacity: that is the ceiling, and the limit is 0.8 of it
    growth       limit = ceiling * (1 + 0.2 * ((s - 8) / 8)^3), s = seconds at the limit since the cut (CUBIC): back at the
                 ceiling after 8 s, above it ever faster after 16 s
    noise        hosts behind a router refuse some calls at any load. So one refusal is a cut only close to the ceiling, and only
                 where none came and went below it lately; else it takes PATIENCE more of them than LEAK of the accepted
    queue        an engine that never refuses: over 3% of the calls waiting is a refusal of those that wait
    outage       failures without a single accepted call: one probe at a time, ever rarer. What they seem to teach about the
                 ceiling is forgotten when calls are accepted again with hardly any in flight
    halt         bad credentials, no credit: one probe in a while, until one is answered

Constants are from simulations of a capacity going 800 -> 300 -> 1,500 (docs/decisions/0005).
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

CUT = 0.8             # of the ceiling, after a refusal
PLATEAU_S = 8.0       # until growth is back at the ceiling
DOUBLING_S = 4.0
USED = 0.8            # a limit that is not used does not grow
PACE = 0.25           # by how much of the limit the calls in flight may grow in a second
LEASE_S = 15.0        # a worker not heard of for so long has nothing in flight
CUT_EVERY_S = 0.5     # refusals of one moment are one cut ...
SPELL_S = 5.0         # ... and cuts closer than this are of one cause
QUEUED = 0.03
QUEUE_CUT_EVERY_S = 4.0
PROBE_EVERY_S = 0.25
LONGEST_PAUSE_S = 3.0
OUTAGE = 0.25         # a ceiling below this share of the limit before was not taught by load ...
FORGET_EVERY_S = 60.0  # ... unless it comes back soon
LEAK, PATIENCE, FULL = 0.34, 4.0, 8.0   # failures run out of their bucket as calls are accepted
NEAR = 0.9            # of the ceiling
MANY, HUM = 200, 0.004          # more than this share of so many calls came and went without being a capacity
SETTLED_S = 1.0       # calls begun so soon after a cut may still belong to it


@dataclass(slots=True)
class Report:
    """What one worker tells: its calls now, and how calls went since its last report.

    want: calls that wait for a slot. queued: calls of this worker that the engine keeps waiting.
    accepted: calls that were answered, or not refused for 2 s. answered: calls that ended well.
    refused: 429 and the like. broken: 5xx, no connection. *_age_s: since the youngest of them began.
    halt: (reason, seconds between probes).
    """

    worker: str
    in_flight: int = 0
    want: int = 0
    queued: int = 0
    accepted: int = 0
    answered: int = 0
    refused: int = 0
    broken: int = 0
    accepted_age_s: float = float("inf")
    answered_age_s: float = float("inf")
    failed_age_s: float = float("inf")
    halt: tuple[str, float] | None = None

    def accept(self, age_s: float) -> None:
        self.accepted += 1
        self.accepted_age_s = min(self.accepted_age_s, age_s)

    def answer(self, age_s: float, accepted: bool) -> None:
        """`accepted`: it was not counted as accepted before."""
        self.answered += 1
        self.answered_age_s = min(self.answered_age_s, age_s)
        if accepted:
            self.accept(age_s)

    def fail(self, age_s: float, refused: bool) -> None:
        self.refused += refused
        self.broken += not refused
        self.failed_age_s = min(self.failed_age_s, age_s)


def _poured(level: float, bad: int, good: int) -> float:
    """A leaky bucket of failures. One that has just come is in it, however many went well."""
    return max(float(bad > 0), level + bad - LEAK * good)


class Share(msgspec.Struct, array_like=True):
    """One worker's part. Forgotten at `until`."""

    until: float
    in_flight: int
    queued: int


class Limit(msgspec.Struct, omit_defaults=True):
    """What the fleet knows of an account. Times are seconds of the clock that `step` is called with."""

    limit: float
    most: int                     # max_in_flight of the account
    ceiling: float = 0.0          # 0: never refused yet
    used_s: float = 0.0
    cut_at: float = 0.0
    seen_at: float = 0.0
    tokens: float = 1.0           # new calls that the pace allows now
    paced: bool = True
    streak: int = 0               # failures in a row, each begun when the one before was known
    bad_at: float = 0.0
    failing_since: float = 0.0    # when the streak began
    before: tuple[float, float] = (0.0, 0.0)   # limit and ceiling before this spell of cuts
    forgot_at: float = -FORGET_EVERY_S
    refusals: float = 0.0         # refused since the last cut, less a part of those accepted
    failures: float = 0.0         # refused or broken, less a part of those accepted
    suspects: int = 0             # refused since `refusals` was 0 ...
    fates: int = 0                # ... of so many calls
    usual: float = 0.0            # share of the calls that are refused though the account is not full
    closed_until: float = 0.0
    probed_at: float = 0.0
    halted: str = ""
    halted_at: float = 0.0
    probe_every_s: float = 20.0
    fixed: int | None = None      # a person's override
    workers: dict[str, Share] = {}

    @classmethod
    def new(cls, start: int, most: int) -> "Limit":
        """A start at `most` also skips the pacing: an engine of our own may be filled at once."""
        return cls(limit=min(start, most), most=most, paced=start < most)

    @property
    def in_flight(self) -> int:
        return sum(share.in_flight for share in self.workers.values())

    @property
    def spare(self) -> int:
        """Slots that are free; none while only probes go out."""
        return 0 if self.halted or self.streak > 1 else int(self.limit if self.fixed is None else self.fixed) - self.in_flight

    def step(self, report: Report, now: float, chance: Callable[[], float] = random.random) -> int:
        """Take in one report; how many new calls its worker may start."""
        passed_s = min(1.0, max(0.0, now - self.seen_at)) if self.seen_at else 0.0
        self.seen_at = max(now, self.seen_at)
        self._enlist(report, now)
        self._halt(report, now)
        self._count(report, now)
        self._judge(report, now, chance)
        self._adapt(report, now, passed_s)
        pace = PACE * self.limit
        self.tokens = min(max(1.0, pace), self.tokens + max(2.0, pace) * passed_s + report.answered)
        grant = self._grant(report, now)
        self.tokens -= grant
        self.workers[report.worker].in_flight += grant
        return grant

    def copy(self) -> "Limit":
        return msgspec.json.decode(msgspec.json.encode(self), type=Limit)

    def described(self) -> dict[str, Any]:
        """For people: limit, how it stands, who uses it. limit: calls at once; ceiling: None before the first refusal."""
        return {
            "limit": int(self.limit) if self.fixed is None else self.fixed, "fixed": self.fixed is not None,
            "ceiling": round(self.ceiling) or None, "max_in_flight": self.most, "in_flight": self.in_flight,
            "queued": sum(share.queued for share in self.workers.values()), "halted": self.halted,
            "probing": bool(self.halted) or self.streak > 1,
            "workers": {name: share.in_flight for name, share in sorted(self.workers.items())},
        }

    def alone(self, worker: str) -> "Limit":
        """One worker's part of it, for while the others cannot be heard: rounded up, or small limits would stand still."""
        n = max(1, len(self.workers))
        mine = self.copy()
        mine.limit, mine.ceiling = -(-self.limit // n), -(-self.ceiling // n)
        mine.before = (-(-self.before[0] // n), -(-self.before[1] // n))
        mine.fixed = None if self.fixed is None else -(-self.fixed // n)
        mine.most = -(-self.most // n)
        mine.workers = {worker: self.workers[worker]} if worker in self.workers else {}
        return mine

    def _enlist(self, report: Report, now: float) -> None:
        self.workers[report.worker] = Share(now + LEASE_S, report.in_flight, report.queued)
        self.workers = {name: share for name, share in self.workers.items() if share.until > now}

    def _halt(self, report: Report, now: float) -> None:
        if self.halted and now - report.answered_age_s > self.halted_at:
            self.halted = ""
        if report.halt:
            self.halted, self.probe_every_s = report.halt
            self.halted_at = self.probed_at = now

    def _judge(self, report: Report, now: float, chance: Callable[[], float]) -> None:
        """Tell an outage from a limit. What becomes of a call says something only of the time since it began."""
        if report.accepted and now - report.accepted_age_s > self.bad_at:
            if self.streak > 1 and self.cut_at >= self.failing_since:
                self._forget(now)
            self.streak = 0
        elif report.refused + report.broken and now - report.failed_age_s > self.bad_at and self.failures >= PATIENCE:
            self.failing_since = self.failing_since if self.streak else now
            self.streak, self.bad_at = self.streak + 1, now
            if self.streak > 1:
                self.closed_until = now + min(LONGEST_PAUSE_S, 2.0 ** min(self.streak - 2, 10)) * (0.75 + 0.5 * chance())

    def _count(self, report: Report, now: float) -> None:
        began = now - report.failed_age_s
        fresh = report.refused if began > self.cut_at else 0
        self.failures = min(FULL, _poured(self.failures, report.refused + report.broken, report.accepted))
        self.refusals = _poured(self.refusals, fresh, report.accepted)
        self.suspects += fresh if began > self.cut_at + SETTLED_S else 0
        self.fates += report.accepted + fresh
        if not self.refusals:       # they came and went: they told nothing of the capacity
            kept = (1 - 1 / MANY) ** self.fates
            self.usual = kept * self.usual + (1 - kept) * self.suspects / max(1, self.fates)
            self.suspects = self.fates = 0

    @property
    def _patience(self) -> float:
        """How many refusals are a capacity."""
        at_the_ceiling = self.in_flight >= NEAR * self.ceiling > 0 and self.usual < HUM
        return 1.0 if at_the_ceiling or self.streak > 1 else PATIENCE

    def _forget(self, now: float) -> None:
        if self.ceiling < OUTAGE * self.before[0] and now - self.forgot_at > FORGET_EVERY_S:
            self.limit, self.ceiling = self.before
            self.forgot_at = now

    def _adapt(self, report: Report, now: float, passed_s: float) -> None:
        total, queued = self.in_flight, sum(share.queued for share in self.workers.values())
        recently = now - self.cut_at < CUT_EVERY_S
        if report.refused and not recently and now - report.failed_age_s > self.cut_at and self.refusals >= self._patience:
            self._cut(total, now)
        elif report.refused and recently:          # it was in flight at the cut, and was no capacity
            self._lower(self.ceiling - report.refused)
        elif queued > max(2.0, QUEUED * total) and now - self.cut_at >= QUEUE_CUT_EVERY_S:
            self._cut(total - queued, now)
        elif self.streak < 2 and total >= USED * self.limit - 1:
            self._grow(passed_s)
        self.limit = max(1.0, min(self.limit, self.most))

    def _cut(self, capacity: float, now: float) -> None:
        if self.streak < 2 and now - self.cut_at > SPELL_S:
            self.before = self.limit, self.ceiling
        self.used_s, self.cut_at, self.paced = 0.0, now, True
        self.refusals, self.suspects, self.fates = 0.0, 0, 0
        self._lower(capacity)

    def _lower(self, capacity: float) -> None:
        self.ceiling = max(2.0, capacity)
        self.limit = CUT * self.ceiling

    def _grow(self, passed_s: float) -> None:
        if not self.ceiling:
            self.limit *= 2.0 ** (passed_s / DOUBLING_S)
        else:
            self.used_s += passed_s
            self.limit = self.ceiling * (1 + (1 - CUT) * ((self.used_s - PLATEAU_S) / PLATEAU_S) ** 3)

    def _grant(self, report: Report, now: float) -> int:
        limit = self.limit if self.fixed is None else float(self.fixed)
        room = min(report.want, limit - self.in_flight, self.tokens if self.paced else float("inf"))
        if self.halted or self.streak > 1:
            return self._probe(report, now)
        if report.in_flight > limit / len(self.workers):
            room = min(room, -(-room // 4))   # let the poorer workers in
        return max(0, int(room))

    def _probe(self, report: Report, now: float) -> int:
        every_s = self.probe_every_s if self.halted else PROBE_EVERY_S
        if not report.want or now < self.closed_until or now - self.probed_at < every_s:
            return 0
        if not self.halted and self.in_flight + 1 > (max(self.limit, self.ceiling) if self.fixed is None else self.fixed):
            return 0
        self.probed_at = now
        return 1
