"""A fleet in the middle of a run, as rows: eight datasets over some hours, with failures, providers and money.

The rows are written directly, since a story of hours cannot be lived by a test; counters are then set to the sums over them.
"""

import json
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import psycopg
import redis

from models import blob
from models.base import connect, transaction
from models.conversation import document
from models.plan import Account, DatasetPlan, LanePlan
from models.store import datasets
from workers.limit import Limit, Share

SECRET = "What the prompt says stays off the pages."
MODEL = "moonshotai/kimi-k2.5"
ACCOUNTS = {"openrouter": Account(), "sglang": Account(kind="sglang", base_url="http://10.0.0.7:30000/v1")}
# name, quantization, how often it is asked, speed
PROVIDERS = [("DeepInfra", "fp8", 0.40, 1.0), ("Fireworks", "fp8", 0.30, 1.3), ("Novita", "fp8", 0.22, 0.9),
             ("Parasail", "int4", 0.08, 0.8)]
OWN = ("sglang", "bf16", 1.0, 1.1)
CAUSES = {"length": 0.5, "http_500": 0.2, "timeout": 0.15, "content_filtered": 0.15}
STATUS = {"http_500": 500, "timeout": None}
GRADES = {"openrouter": {3: 86, 2: 8, 1: 4, 0: 2}, "sglang": {5: 97, 3: 2, 2: 1}}
DRIFT = json.dumps({"Parasail": "answers that are cut: 41% against 6% of the others"})
MAXIMA = (10_240, 16_384)


@dataclass(frozen=True)
class Story:
    """ended, failed: shares of the samples, and of the ended ones. hours: since it began."""

    name: str
    samples: int
    ended: float
    failed: float
    hours: float
    budget: int
    account: str = "openrouter"
    running: int = 0
    closed: str | None = None


STORIES = [
    Story("B1", 900, 1.00, 0.02, 5.0, 4_000_000), Story("B2", 1200, 0.97, 0.01, 4.6, 4_400_000, closed="budget"),
    Story("B3", 1100, 0.72, 0.22, 4.0, 4_200_000, running=41), Story("B4", 1000, 0.55, 0.03, 3.2, 4_000_000, running=230),
    Story("B5", 800, 0.40, 0.015, 2.5, 3_000_000, running=210), Story("B6", 900, 0.28, 0.06, 1.6, 3_500_000, "sglang", 120),
    Story("B7", 700, 0.12, 0.04, 0.9, 2_500_000, closed="operator"), Story("B8", 600, 0.0, 0.0, 0.2, 2_000_000)]


def fill(url: str, seed: int = 7) -> None:
    engine = connect(url, size=1)
    with transaction(engine) as connection:
        for story in STORIES:
            datasets.put(connection, story.name, DatasetPlan(
                profile="kimi-k2.5", model=MODEL, account=story.account, token_budget=story.budget, money_budget_usd=20.0,
                short=LanePlan(max_tokens=MAXIMA[0], concurrency=2_000),
                long=LanePlan(max_tokens=MAXIMA[1], concurrency=500)), ACCOUNTS)
    engine.dispose()
    dice, now = random.Random(seed), datetime.now(UTC)
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        for i, story in enumerate(STORIES):
            Rows(story, i * 10_000 + 1, dice, now).write(connection)
        connection.cursor().executemany(
            "insert into worker (id, name, host, pid, lane, concurrency, heartbeat_at, in_flight, facts) values "
            "(%s, %s, %s, %s, %s, %s, %s, %s, %s)",
            [(1, "short-1", "alder", 4001, 0, 1000, now, 331, '{"lag_ms": 4}'),
             (2, "short-2", "birch", 4002, 0, 1000, now, 188, '{"lag_ms": 7, "token_wait_ms": 11}'),
             (3, "long-1", "alder", 4003, 1, 500, now, 82, '{"lag_ms": 5}')])
        connection.execute(SUMS)
        connection.execute("update dataset set settings = jsonb_set(settings, '{excluded}', %s) where name in ('B3', 'B4')",
                           [DRIFT])


@dataclass
class Rows:
    """The rows of one dataset. Samples end in order of their ids, the first ones hours ago, the last one now."""

    story: Story
    first: int
    dice: random.Random
    now: datetime
    dataset_id: int = 0
    samples: list[list[Any]] = field(default_factory=list)
    attempts: list[list[Any]] = field(default_factory=list)
    completions: list[list[Any]] = field(default_factory=list)

    def write(self, connection: Any) -> None:
        story = self.story
        [self.dataset_id] = connection.execute("select id from dataset where name = %s", [story.name]).fetchone()
        connection.execute("update dataset set created_at = %s where id = %s", [self.begun, self.dataset_id])
        if story.closed:
            connection.execute("update dataset set state = 1, closed_reason = %s, closed_at = %s where id = %s",
                               [story.closed, self.over, self.dataset_id])
        ended = int(story.samples * story.ended)
        prompt = blob.pack_json(document([{"role": "user", "content": SECRET}]))
        for i in range(story.samples):
            lane = int(self.dice.random() < 0.18)
            if i < ended:
                row = self._ended(self.first + i, lane, self._when(i / ended))
            elif i < ended + story.running:
                row = self._running(self.first + i, lane)
            else:
                row = [0, 0, 0, None, None, self.begun]
            key = f"{story.name}-{i:05}"
            self.samples.append([self.first + i, self.dataset_id, key, key, lane, prompt, *row])
        _copy(connection, "sample", SAMPLE, self.samples)
        _copy(connection, "attempt", ATTEMPT, self.attempts)
        _copy(connection, "completion", COMPLETION, self.completions)

    @property
    def begun(self) -> datetime:
        return self.now - timedelta(hours=self.story.hours)

    @property
    def over(self) -> datetime:
        return self.now - timedelta(minutes=25) if self.story.closed or self.story.ended == 1 else self.now

    def _when(self, share: float) -> datetime:
        return self.over - (self.over - self.begun) * (1 - share) ** 1.15 - timedelta(seconds=self.dice.uniform(0, 40))

    def _one_of(self, weights: dict[Any, float]) -> Any:
        return self.dice.choices(list(weights), list(weights.values()))[0]

    def _ended(self, sample_id: int, lane: int, at: datetime) -> list[Any]:
        provider = OWN if self.story.account == "sglang" else self.dice.choices(PROVIDERS, [p[2] for p in PROVIDERS])[0]
        length = min(MAXIMA[lane], int(self.dice.lognormvariate(8.35 if lane else 7.9, 0.75)))
        latency_ms = int(length / (55 * provider[3]) * 1000 + self.dice.uniform(400, 3000))
        price = 0 if self.story.account == "sglang" else 2_500 / provider[3]
        fence = 1
        if self.dice.random() < 0.06:
            self._attempt(sample_id, fence, lane, at - timedelta(minutes=3), 500, "snooze", "rate_limited", provider, 429, 0, 0)
            fence += 1
        if self.dice.random() < self.story.failed * (2.5 if provider[0] == "Parasail" else 1):
            cause = self._one_of(CAUSES)
            paid = MAXIMA[lane] if cause == "length" else 0
            self._attempt(sample_id, fence, lane, at, latency_ms, "drop", cause, provider, STATUS.get(cause, 200), paid,
                          int(paid * price))
            return [3, fence, 2, None, cause, at]
        cut = length == MAXIMA[lane]
        self._attempt(sample_id, fence, lane, at, latency_ms, "done", "length" if cut else "ok", provider, 200, length,
                      int(length * price))
        grade = self._one_of(GRADES[self.story.account])
        self.completions.append([
            sample_id, fence, self.dataset_id, grade, "v1", grade > 0, cut, "length" if cut else "stop", provider[0], provider[1],
            MODEL, self.story.account, "f", "{}", int(length * price), 200, length, "[]", b"", b"", b"", at])
        return [2, fence, 1, None, None, at]

    def _running(self, sample_id: int, lane: int) -> list[Any]:
        since = self.now - timedelta(seconds=self.dice.uniform(1, 140))
        self.attempts.append([sample_id, 1, self.dataset_id, 1 + 2 * lane, lane, self.story.account, 2_900,
                              0 if self.story.account == "sglang" else 9_000_000, since, *[None] * 11])
        return [1, 1, 0, 1 + 2 * lane, None, since]

    def _attempt(self, sample_id: int, fence: int, lane: int, at: datetime, latency_ms: int, action: str, code: str,
                 provider: tuple[str, str, float, float], status: int | None, tokens: int, nusd: int) -> None:
        self.attempts.append([
            sample_id, fence, self.dataset_id, 1 + 2 * lane, lane, self.story.account, 0, 0,
            at - timedelta(milliseconds=latency_ms), at, action, code, "usage" if tokens else "none", provider[0], provider[1],
            status, self.dice.randint(60, 900) if tokens else 0, tokens, nusd, latency_ms])


SAMPLE = "id, dataset_id, key, primary_id, lane, prompt, state, fence, burnt, worker_id, reason, changed_at"
ATTEMPT = ("sample_id, fence, dataset_id, worker_id, lane, account, reserved_tokens, reserved_nusd, started_at, ended_at, "
           "action, code, basis, provider, quantization, status, prompt_tokens, completion_tokens, cost_nusd, latency_ms")
COMPLETION = ("sample_id, fence, dataset_id, grade, version, trainable, truncated, finish_reason, provider, quantization, model, "
              "account, fingerprint, sampling, cost_nusd, n_prompt, n_tokens, spans, prompt_ids, ids, raw, created_at")
SUMS = """
update dataset d set
  samples = (select count(*) from sample s where s.dataset_id = d.id),
  running = (select count(*) from sample s where s.dataset_id = d.id and s.state = 1),
  done = (select count(*) from sample s where s.dataset_id = d.id and s.state = 2),
  failed = (select count(*) from sample s where s.dataset_id = d.id and s.state = 3),
  stored_tokens = (select coalesce(sum(n_tokens), 0) from completion c where c.dataset_id = d.id),
  useful_tokens = (select coalesce(sum(n_tokens), 0) from completion c
    where c.dataset_id = d.id and trainable and grade > 0),
  billed_tokens = (select coalesce(sum(prompt_tokens + completion_tokens), 0) from attempt a where a.dataset_id = d.id),
  spent_nusd = (select coalesce(sum(cost_nusd), 0) from attempt a where a.dataset_id = d.id),
  reserved_tokens = (select coalesce(sum(reserved_tokens), 0) from attempt a where a.dataset_id = d.id and ended_at is null),
  reserved_nusd = (select coalesce(sum(reserved_nusd), 0) from attempt a where a.dataset_id = d.id and ended_at is null)"""


def _copy(connection: Any, table: str, columns: str, rows: list[list[Any]]) -> None:
    with connection.cursor().copy(f"copy {table} ({columns}) from stdin") as copy:
        for row in rows:
            copy.write_row(row)


def limits(redis_url: str, prefix: str = "draftmill:") -> None:
    """Two accounts' limits as workers leave them: one that was found, one that is halted."""
    found = Limit.new(620, 5_000)
    found.ceiling = 700
    found.workers = {"short-1": Share(4e18, 331, 12), "short-2": Share(4e18, 188, 0)}
    halted = Limit.new(128, 256)
    halted.halted, halted.workers = "bad_credentials", {"long-1": Share(4e18, 0, 82)}
    client = redis.Redis.from_url(redis_url)
    for name, limit in (("openrouter", found), ("sglang", halted)):
        client.set(f"{prefix}limit:{name}", msgspec.json.encode(limit))
    client.close()


def failures(url: str, name: str, causes: dict[str, int]) -> None:
    """Failed long samples on top, so many of each cause."""
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        for cause, n in causes.items():
            connection.execute("""
                with new as (
                  insert into sample (id, dataset_id, key, primary_id, lane, prompt, state, fence, burnt, reason)
                  select 1000000 + row_number() over () + (select count(*) from sample), d.id, 'late-' || %(cause)s || i,
                    'late-' || %(cause)s || i, 1, (select prompt from sample limit 1), 3, 1, 2, %(cause)s
                  from dataset d, generate_series(1, %(n)s) i where d.name = %(name)s returning id, dataset_id)
                insert into attempt (sample_id, fence, dataset_id, worker_id, lane, account, reserved_tokens, reserved_nusd,
                  started_at, ended_at, action, code, basis, provider, quantization, status, latency_ms)
                select id, 1, dataset_id, 3, 1, 'openrouter', 0, 0, now() - interval '5 min', now() - interval '4 min', 'drop',
                  %(cause)s, 'none', 'DeepInfra', 'fp8', 200, 60000 from new""", {"cause": cause, "n": n, "name": name})
        connection.execute(SUMS)
