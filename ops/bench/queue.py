"""A million samples: how fast they come in, what they cost in memory, and what claims and status cost among them."""

import asyncio
import json
import os
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import redis

from models.base import connect_async, perform, perform_whole
from models.hint import Hints
from models.plan import Account, DatasetPlan
from models.states import Lane
from models.store import claims, datasets, samples, sweeps
from models.store.schema import migrate
from ops import services
from ops.bench.mill import folder
from ops.bench.report import table
from ops.bench.usage import spent
from producer.enqueue import enqueue, hint

DATASETS, WINDOW, BATCH = 8, 4_000, 100


@dataclass(frozen=True, slots=True)
class Depth:
    """What things cost when so many samples are queued. Times in ms; the claims' are medians of 20 batches of 100."""

    queued: int
    claim_ms: float
    claim_rows: str              # how PostgreSQL finds the samples of a claim
    hintable_ms: float
    redis_mb: float
    hints: int


def measure(n: int, enqueued: int) -> str:
    """So many are enqueued from files, and the rest of n is then laid beside them by one statement a dataset."""
    with folder() as place, services.start(place / "home") as running:
        migrate(running.database_url)
        urls = running.database_url, running.redis_url
        begun, cpu = time.monotonic(), time.process_time()
        first = asyncio.run(_enqueued(*urls, place, enqueued))
        seconds, cpu = time.monotonic() - begun, time.process_time() - cpu
        depths = [asyncio.run(_costs(*urls, first))]
        _lay(running.database_url, (n - enqueued) // DATASETS)
        depths.append(asyncio.run(_costs(*urls, first)))
        status_s, status_cpu_s = spent("status", "--json", DRAFTMILL_DATABASE_URL=running.database_url,
                                       DRAFTMILL_REDIS_URL=running.redis_url, DRAFTMILL_HOME=str(place))
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    rows = [[d.queued, d.claim_ms, d.claim_rows, d.hintable_ms, d.hints, d.redis_mb] for d in depths]
    head = ["samples", "claim of 100, ms", "found by", "hints for 500, ms", "hints in Redis", "Redis MB"]
    return (f"{table(head, rows)}\n\nEnqueue of {enqueued:,} prompts from files: {enqueued / seconds:,.0f} a second of the "
            f"clock, {enqueued / cpu:,.0f} a second of CPU, at most {peak_mb:.0f} MB in the process. `draftmill status --json` "
            f"then: {status_s:.2f} s, {status_cpu_s:.2f} s of CPU.")


async def _enqueued(database_url: str, redis_url: str, place: Path, n: int) -> int:
    """The id of the first dataset."""
    engine, names = connect_async(database_url, worker=False), [f"B{n + 1}" for n in range(DATASETS)]
    ids = list[int]()
    for name in names:
        plan = DatasetPlan(profile="none", model="none", account="none")
        dataset_id = await perform_whole(engine, datasets.put, name, plan, {"none": Account(kind="vllm", base_url="http://none")})
        file = place / f"{name}.jsonl"
        with file.open("w", encoding="utf-8") as lines:
            lines.writelines(_prompts(name, n // DATASETS))
        await enqueue(engine, dataset_id, name, plan, [file], place / f"{name}.rejected.jsonl")
        file.unlink()
        ids.append(dataset_id)
    hints = Hints(redis_url, "draftmill:")
    await hint(engine, hints, names, WINDOW)
    await hints.close()
    await engine.dispose()
    return ids[0]


def _lay(database_url: str, each: int) -> None:
    """More samples in every dataset, with the prompt of one that is there."""
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("""
            insert into sample (dataset_id, key, primary_id, turn, lane, prompt)
            select d.id, 'laid-' || n, 'laid-' || n, 0, 0, (select prompt from sample limit 1)
            from dataset d cross join generate_series(1, %s) n""", (each,))
        connection.execute("update dataset set samples = samples + %s", (each,))


async def _costs(database_url: str, redis_url: str, dataset_id: int) -> Depth:
    engine = connect_async(database_url)
    worker = await perform(engine, sweeps.join, name="bench", host="", pid=os.getpid(), lane=0, concurrency=2_000)
    ids = await perform(engine, samples.hintable, dataset_id, Lane.SHORT, 20 * BATCH, 0.0)
    took, hinting = list[float](), list[float]()
    for at in range(0, len(ids), BATCH):
        begun = time.perf_counter()
        await perform(engine, claims.claim_or_refuse, [(i, "none") for i in ids[at:at + BATCH]], worker, Lane.SHORT)
        took.append(time.perf_counter() - begun)
    for _ in range(5):
        begun = time.perf_counter()
        await perform(engine, samples.hintable, dataset_id, Lane.SHORT, 500, 3_600.0)
        hinting.append(time.perf_counter() - begun)
    await engine.dispose()
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as connection:
        queued = connection.execute("select count(*) from sample").fetchone()
        explained = "explain (format json) select id from sample where id = any(%s) for no key update skip locked"
        plan = connection.execute(explained, (ids[:BATCH],)).fetchone()
    with redis.Redis.from_url(redis_url) as client:
        memory = int(dict(client.info("memory"))["used_memory"]) / 1024**2
        waiting = sum(int(client.llen(key)) for key in client.scan_iter(match="draftmill:*.B*"))
    return Depth(queued[0] if queued else 0, 1e3 * sorted(took)[len(took) // 2], _found_by(plan[0] if plan else []),
                 1e3 * sorted(hinting)[2], memory, waiting)


def _found_by(plan: list[dict[str, Any]]) -> str:
    node = plan[0]["Plan"]
    while node.get("Plans"):
        node = node["Plans"][0]
    return f"{node['Node Type']} {node.get('Index Name', '')}".strip()


def _prompts(name: str, n: int) -> Iterator[str]:
    text = "Explain step by step how the following works and where it fails. " * 6
    for i in range(n):
        yield json.dumps({"id": f"{name}-{i}", "prompt": f"{text}Case {i} of {name}."}) + "\n"
