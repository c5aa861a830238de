"""What is done to a running fleet, and what is promised meanwhile."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.chaos import on_postgres, on_redis, on_workers
from tests.chaos.fleet import IN_FLIGHT, QUICK, ROWS, Fleet


@dataclass(frozen=True, slots=True)
class Fault:
    """strike: the harm, with the run under way; it returns when all is mended. quick: also part of CI."""

    name: str
    promise: str
    strike: Callable[[Fleet], None]
    quick: bool = False
    rows: int = ROWS
    in_flight: int = IN_FLIGHT
    arguments: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: QUICK)
    plan: Mapping[str, Any] = field(default_factory=dict)
    behaviour: Mapping[str, Any] = field(default_factory=dict)
    lacking: Callable[[], str] = str      # why it cannot be had here, or ""


FAULTS = [
    Fault("worker: kill -9", "paid twice only what was in flight", on_workers.kill_worker, quick=True),
    Fault("worker: kill -9, five times with 2,000 in flight", "paid twice only what was in flight",
          on_workers.kill_worker_five_times, rows=10_000, in_flight=2_000,
          behaviour={"min_length": 200, "max_length": 300, "tokens_per_s": 25}),
    Fault("worker: SIGTERM, answers longer than the grace", "claims are released at once", on_workers.stop_worker,
          behaviour={"tokens_per_s": 15}),
    Fault("worker: SIGTERM, answers shorter than the grace", "nothing is paid twice", on_workers.stop_worker_kindly,
          env={**QUICK, "DRAFTMILL_GRACE_S": "20"}),
    Fault("worker: SIGTERM twice", "ends at once, claims released", on_workers.stop_worker_twice, behaviour={"tokens_per_s": 15}),
    Fault("worker: frozen past its heartbeat", "late answers are refused and booked", on_workers.freeze_worker, quick=True,
          arguments=("--short-workers", "2"), rows=450),
    Fault("worker: the same name twice", "both work", on_workers.same_name_twice),
    Fault("clocks: one two hours ahead, one two hours late", "nothing is paid twice but for a worker that is killed",
          on_workers.clocks_apart, lacking=on_workers.no_faketime, env={
              **QUICK, **on_workers.TWO_HOURS_AHEAD}),
    Fault("Redis: kill -9, back after 1 s", "nothing is paid twice", on_redis.redis_killed),
    Fault("Redis: kill -9, back empty after 1 s", "nothing is paid twice", on_redis.redis_killed_and_empty, quick=True),
    Fault("Redis: away for 60 s", "nothing is paid twice", on_redis.redis_away),
    Fault("Redis: away for 60 s, back empty", "nothing is paid twice", on_redis.redis_away_and_empty),
    Fault("Redis: FLUSHALL, three times", "nothing is paid twice", on_redis.flushall),
    Fault("Redis: out of memory for 15 s", "nothing is paid twice", on_redis.redis_full),
    Fault("Redis: half open for 2 minutes", "nothing is paid twice", on_redis.redis_half_open),
    Fault("Redis: 200 ms for each answer", "nothing is paid twice", on_redis.redis_slow),
    Fault("Redis: junk in every list", "at most one restart of a worker", on_redis.redis_junk),
    Fault("PostgreSQL: fast restart", "nothing is paid twice", on_postgres.postgres_restarted),
    Fault("PostgreSQL: immediate restart", "nothing is paid twice", on_postgres.postgres_restarted_at_once, quick=True),
    Fault("PostgreSQL: kill -9", "nothing is paid twice", on_postgres.postgres_killed),
    Fault("PostgreSQL: away for 60 s", "no new calls, memory stays bounded; nothing is paid twice", on_postgres.postgres_away,
          rows=450, in_flight=200),
    Fault("PostgreSQL: 200 ms for each answer", "nothing is paid twice", on_postgres.postgres_slow),
    Fault("PostgreSQL: replies to commits lost", "nothing is paid twice", on_postgres.replies_lost, quick=True),
    Fault("PostgreSQL: deadlocks", "nothing is paid twice", on_postgres.deadlocks),
    Fault("reaper: two, the leading one frozen", "another leads within 30 s", on_workers.two_reapers),
]
