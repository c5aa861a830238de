"""Metrics in Prometheus' text form, read from PostgreSQL and Redis when they are asked for.

`Meter.exposition()` is what a handler answers with; `serve` is a port of its own for it. Each source is read under a deadline,
at most once in its own period whoever asks; one that does not answer is left out and told by `draftmill_source_up`.
"""

import asyncio
import hmac
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from redis.asyncio import Redis
from sqlalchemy import Connection

from models.base import connect, transaction
from models.errors import DraftmillError, SettingsError
from models.hint import Hints, queue_of
from models.settings import Settings
from models.states import Lane
from models.store import datasets, meters, spending, totals
from ops.families import FAMILIES
from workers.shared import Limits

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
DEADLINE_S = 8.0             # Prometheus gives up after 10
FRESH_S, SLOW_S = 5.0, 60.0  # the ledger as a whole is read once a minute

Readings = dict[str, list[tuple[tuple[str, ...], float]]]   # family -> [(values of its labels, value)]


@dataclass
class Source:
    """One thing that is read as a whole, in a thread."""

    name: str
    read: Callable[[], Readings]
    period_s: float
    readings: Readings | None = None
    read_at: float = 0.0
    took_s: float = 0.0
    future: "Future[Readings] | None" = None

    def due(self) -> bool:
        return self.future is None and (self.readings is None or monotonic() - self.read_at > self.period_s)

    def take(self, begun: float) -> None:
        """The result of a future that is done; one that runs on is left for the next scrape."""
        if self.future is None:
            return
        if not self.future.done():
            self.readings = None
            return
        future, self.future = self.future, None
        try:
            self.readings = future.result()
        except (DraftmillError, OSError):
            self.readings = None
        self.read_at, self.took_s = monotonic(), monotonic() - begun


class Meter(Collector):
    """Threads may scrape at once; they share one reading."""

    def __init__(self, settings: Settings, *, deadline_s: float = DEADLINE_S, fresh_s: float = FRESH_S,
                 slow_s: float = SLOW_S) -> None:
        if settings.database_url is None or settings.redis_url is None:
            raise SettingsError(cause="metrics need DRAFTMILL_DATABASE_URL and DRAFTMILL_REDIS_URL, or a running `up`")
        self._settings, self._deadline_s = settings, deadline_s
        self._engine = connect(settings.database_url.get_secret_value(), size=2)
        self._redis_url = settings.redis_url.get_secret_value()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(3, thread_name_prefix="scrape")
        self._sources = [Source("database", self._database, fresh_s), Source("ledger", self._ledger, slow_s),
                         Source("redis", self._broker, fresh_s)]
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def exposition(self) -> bytes:
        """All families in the text form 0.0.4. Returns within the deadline, whatever the services do."""
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        """Nothing is read when the collector is registered."""
        return []

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)
        self._engine.dispose()

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            self._refresh()
            found: Readings = defaultdict(list)
            for source in self._sources:
                found["source_up"].append(((source.name,), float(source.readings is not None)))
                found["source_read_seconds"].append(((source.name,), source.took_s))
                for family, values in (source.readings or {}).items():
                    found[family] += values
        for name, one in FAMILIES.items():
            kind = CounterMetricFamily if one.counter else GaugeMetricFamily
            metric = kind(f"draftmill_{name}", one.says, labels=one.labels)
            for labels, value in found.get(name, ()):
                metric.add_metric(labels, value)
            yield metric

    def _refresh(self) -> None:
        begun = monotonic()
        for source in self._sources:
            if source.due():
                source.future = self._pool.submit(source.read)
        wait([s.future for s in self._sources if s.future], timeout=self._deadline_s)
        for source in self._sources:
            source.take(begun)

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        with transaction(self._engine) as connection:
            meters.within(connection, self._deadline_s)
            yield connection

    def _database(self) -> Readings:
        with self._connection() as connection:
            return {**_datasets(totals.datasets(connection)), **_waiting(meters.waiting(connection)),
                    **_workers(totals.workers(connection)),
                    "workers_died": [((), meters.deaths(connection))],
                    "reaper_leading": [((), float(meters.reaper_leads(connection)))]}

    def _ledger(self) -> Readings:
        with self._connection() as connection:
            known = totals.datasets(connection)
            spending.add(connection, known)
            return {**_providers(totals.providers(connection)),
                    "attempts": [((v.dataset, v.lane, v.action, v.code), v.calls) for v in meters.verdicts(connection)],
                    "waste_tokens": [((d.name, k), w["tokens"]) for d in known for k, w in d.waste.items()],
                    "waste_dollars": [((d.name, k), w["usd"]) for d in known for k, w in d.waste.items()]}

    def _broker(self) -> Readings:
        with self._connection() as connection:
            names = [d.name for d in datasets.every(connection)]
        return asyncio.run(self._queues_and_limits(names))

    async def _queues_and_limits(self, names: list[str]) -> Readings:
        hints = Hints(self._redis_url, self._settings.key_prefix, self._deadline_s / 2)
        redis: Redis = Redis.from_url(self._redis_url, socket_timeout=self._deadline_s / 2, socket_connect_timeout=3)
        try:
            queues = {queue_of(lane, name): (name, lane.label) for name in names for lane in Lane}
            lengths = await hints.lengths(queues) if queues else {}
            states = await Limits(redis, self._settings.key_prefix).states()
        finally:
            await hints.close()
            await redis.aclose()
        return {
            "queue_length": [(queues[queue], float(n)) for queue, n in lengths.items()],
            "account_in_flight": [((a,), s["in_flight"]) for a, s in states.items()],
            "account_limit": [((a,), s["limit"]) for a, s in states.items()],
            "account_waiting": [((a,), s["queued"]) for a, s in states.items()],
            "account_paused": [((a, s["halted"]), 1.0) for a, s in states.items() if s["halted"]]}


def _datasets(known: list[totals.DatasetTotals]) -> Readings:
    found: Readings = defaultdict(list)
    for d in known:
        for state in ("queued", "running", "done", "failed"):
            found["samples"].append(((d.name, state), getattr(d, state)))
        found["dataset_open"].append(((d.name,), float(d.state == "open")))
        if d.closed_reason:
            found["dataset_closed"].append(((d.name, d.closed_reason), 1.0))
        for name in ("billed_tokens", "stored_tokens", "useful_tokens", "reserved_tokens"):
            found[name].append(((d.name,), getattr(d, name)))
        found["spent_dollars"].append(((d.name,), d.spent_usd))
        found["reserved_dollars"].append(((d.name,), d.reserved_usd))
        if d.token_budget is not None:
            found["token_budget"].append(((d.name,), d.token_budget))
        if d.money_budget_usd is not None:
            found["money_budget_dollars"].append(((d.name,), d.money_budget_usd))
        found["in_flight"] += [((d.name, lane), n) for lane, n in d.running_by_lane.items()]
        found["rows"] += [((d.name, grade), n) for grade, n in d.grades.items()]
        found["failed_samples"] += [((d.name, reason), n) for reason, n in d.failures.items()]
        found["provider_excluded"] += [((d.name, provider), 1.0) for provider in d.excluded]
    return found


def _waiting(known: list[meters.Waiting]) -> Readings:
    return {"open_samples": [((w.dataset, w.lane), w.queued) for w in known],
            "snoozed_samples": [((w.dataset, w.lane), w.snoozed) for w in known]}


def _workers(fleet: list[totals.WorkerTotals]) -> Readings:
    found: Readings = defaultdict(list)
    for w in fleet:
        labels = (str(w.id), w.name, w.host, w.lane)
        found["worker_heartbeat_age_seconds"].append((labels, w.heartbeat_age_s))
        found["worker_in_flight"].append((labels, w.in_flight))
        found["worker_concurrency"].append((labels, w.concurrency))
        found["worker_spool"].append((labels, w.facts.get("spool", 0)))
        found["worker_loop_lag_seconds"].append((labels, w.facts.get("lag_ms", 0) / 1000))
        found["worker_token_wait_seconds"].append((labels, w.facts.get("token_wait_ms", 0) / 1000))
    return found


def _providers(known: list[totals.ProviderTotals]) -> Readings:
    found: Readings = defaultdict(list)
    for p in known:
        labels = (p.dataset, p.provider, p.quantization)
        for outcome in ("ok", "refused", "broken", "truncated"):
            found["provider_calls"].append(((*labels, outcome), getattr(p, outcome)))
        for quantile, value in (("0.5", p.p50_s), ("0.95", p.p95_s)):
            if value is not None:
                found["provider_latency_seconds"].append(((*labels, quantile), value))
        if p.tokens_per_s is not None:
            found["provider_tokens_per_second"].append((labels, p.tokens_per_s))
    return found


class Server(ThreadingHTTPServer):
    daemon_threads = True
    meter: Meter

    def server_close(self) -> None:
        super().server_close()
        self.meter.close()


def serve(settings: Settings, address: str, port: int) -> Server:
    """A server on its own port, to be run with `serve_forever`. SettingsError when others could read it without a token."""
    token = settings.metrics_token.get_secret_value() if settings.metrics_token else ""
    if not token and address not in ("127.0.0.1", "localhost", "::1"):
        raise SettingsError(cause="metrics on an address that others reach need DRAFTMILL_METRICS_TOKEN")
    meter = Meter(settings)

    class Handler(BaseHTTPRequestHandler):
        timeout = 30

        def do_GET(self) -> None:
            if self.path == "/healthcheck":
                self._answer(200, b"ok\n", "text/plain")
            elif not _shown(token, self.headers.get("Authorization", "")):
                self._answer(401, b"a bearer token is needed\n", "text/plain")
            elif self.path == "/metrics":
                self._answer(200, meter.exposition(), CONTENT_TYPE)
            else:
                self._answer(404, b"only /metrics is here\n", "text/plain")

        def _answer(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """A scrape every few seconds is no news."""

    server = Server((address, port), Handler)
    server.meter = meter
    return server


def _shown(token: str, header: str) -> bool:
    return not token or hmac.compare_digest(header.encode(), f"Bearer {token}".encode())
