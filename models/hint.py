"""The wire format of a hint, and how to send one.

A hint is a Celery message that names a sample and carries nothing else: `[sample id, dataset name, lane]`. It may be
lost or doubled at any moment (docs/decisions/0001). It is written here as Celery's protocol 2 and kombu's Redis list
have it, so that a producer loads neither; tests/workers/test_app.py holds it against the real worker.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from models import tracing
from models.errors import BrokerAway
from models.states import Lane

TASK = "draftmill.generate"
BATCH = 500               # hints in one round trip
CONTROL = "celery.pidbox"   # where Celery's workers listen for remote control

# kombu's options; every process on the broker needs the same prefix and priority steps.
TRANSPORT_OPTIONS = {
    "ack_emulation": False,              # a hint is acknowledged by being popped: one Redis command instead of nine
    "priority_steps": [0],               # one list per queue, named like the queue
    "queue_order_strategy": "round_robin",
    "max_connections": 50,
    "health_check_interval": 25,
    "socket_keepalive": True,
    "socket_connect_timeout": 5,
    "socket_timeout": 10,                # must exceed the blocking pop of 1 s; the default waits for ever
}


def queue_of(lane: Lane, dataset: str) -> str:
    """`short.B1`. The dataset's name has passed `models.names.checked`."""
    return f"{lane.label}.{dataset}"


def broker_settings(redis_url: str, prefix: str) -> dict[str, Any]:
    """Celery's configuration as far as workers, Flower and whoever else uses the broker share it."""
    return {
        "broker_url": redis_url,
        "broker_transport_options": {**TRANSPORT_OPTIONS, "global_keyprefix": prefix},
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "result_backend": None,
        "task_serializer": "json",
        "result_serializer": "json",
        "accept_content": ["json"],
        "task_ignore_result": True,
        "task_send_sent_event": False,
        "event_queue_expires": 60,
        "event_queue_ttl": 5,
    }


def hint(queue: str, dataset: str, lane: Lane, sample_id: int) -> str:
    """One element of the queue's list. Its id is readable in Flower and unique, since Celery keys tasks by it."""
    args = [sample_id, dataset, lane.label]
    task_id = f"{dataset}-{sample_id}-{os.urandom(6).hex()}"
    headers = {"lang": "py", "task": TASK, "id": task_id, "root_id": task_id,
               "argsrepr": repr(tuple(args)), "kwargsrepr": "{}"}
    return _message(json.dumps([args, {}, {}]), task_id, {"exchange": "", "routing_key": queue}, headers)


def _message(body: str, tag: str, delivery: dict[str, str], headers: dict[str, Any]) -> str:
    return json.dumps({
        "body": body, "content-type": "application/json", "content-encoding": "utf-8", "headers": headers,
        "properties": {"delivery_tag": tag, "delivery_info": delivery, "correlation_id": tag, "priority": 0},
    })


class Hints:
    """The queues as producers and the reaper see them. Each round trip ends within `deadline_s` or raises BrokerAway."""

    def __init__(self, redis_url: str, prefix: str, deadline_s: float = 10.0) -> None:
        self._prefix, self._deadline_s = prefix, deadline_s
        self._redis: Redis = Redis.from_url(
            redis_url, socket_timeout=deadline_s, socket_connect_timeout=min(5.0, deadline_s), health_check_interval=25,
            retry=Retry(NoBackoff(), 1),  # a connection that died while idle is opened anew, once
        )

    async def send(self, queue: str, dataset: str, lane: Lane, sample_ids: Sequence[int]) -> None:
        """Append hints. After BrokerAway some may have been sent: harmless, send them again later."""
        for start in range(0, len(sample_ids), BATCH):
            hints = [hint(queue, dataset, lane, i) for i in sample_ids[start:start + BATCH]]
            async with self._broker() as redis:
                await redis.lpush(self._prefix + queue, *hints)
        tracing.hinted(dataset, lane.label, sample_ids)

    async def lengths(self, queues: Iterable[str]) -> dict[str, int]:
        """Hints that wait in each queue; an unknown queue has 0."""
        names = list(queues)
        async with self._broker() as redis, redis.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.llen(self._prefix + name)
            return dict(zip(names, await pipeline.execute(), strict=True))

    async def purge(self, queue: str) -> None:
        """Drop the waiting hints of a queue. Its samples stay queued in the database."""
        async with self._broker() as redis:
            await redis.unlink(self._prefix + queue)

    async def cancel(self, queue: str) -> None:
        """Ask every worker to stop consuming a queue now; each would find out by itself within seconds."""
        body = json.dumps({"method": "cancel_consumer", "arguments": {"queue": queue}, "destination": None})
        async with self._broker() as redis:
            database = redis.connection_pool.connection_kwargs.get("db") or 0
            message = _message(body, os.urandom(8).hex(), {"exchange": CONTROL, "routing_key": ""}, {"clock": 0})
            await redis.publish(f"{self._prefix}/{database}.{CONTROL}", message)

    async def close(self) -> None:
        await self._redis.aclose()

    @asynccontextmanager
    async def _broker(self) -> AsyncIterator[Redis]:
        try:
            async with asyncio.timeout(self._deadline_s):
                yield self._redis
        except (RedisError, OSError, TimeoutError) as error:
            raise BrokerAway(cause=f"{type(error).__name__}: {error}") from error
