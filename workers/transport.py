"""kombu's Redis transport, except that a list element which is no hint is logged and dropped, and that it soon tries again.

With the stock transport a single malformed element ends the worker, and some kinds end every worker after it (measured
on kombu 5.7; docs/decisions/0001). Three methods of kombu are overridden and one private name of it is touched: pinned in
pyproject.toml, held by tests/workers/test_transport.py.
"""

from queue import Empty
from typing import Any

import structlog
from celery.app import amqp
from kombu import connection
from kombu.transport import redis

log = structlog.get_logger(__name__)

MAX_BYTES = 64 * 1024   # a hint has some 400
# What malformed input raises in kombu and Celery. Connection errors are OSError or RedisError and pass.
MALFORMED = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
LONGEST_PAUSE_S = 5


class Connection(connection.Connection):
    """kombu's pauses between two attempts to connect grow to 30 s: after a minute without Redis that is 12 s of idle slots."""

    def ensure_connection(self, *args: Any, **kwargs: Any) -> Any:
        return super().ensure_connection(*args, **{"interval_max": LONGEST_PAUSE_S, **kwargs})  # type: ignore[no-untyped-call]


class AMQP(amqp.AMQP):  # type: ignore[misc]
    Connection = Connection


class Channel(redis.Channel):
    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]
        except MALFORMED as error:  # not JSON at all
            log.error("dropped_malformed_message", cause=repr(error)[:200])
            raise Empty from error


class Transport(redis.Transport):
    Channel = Channel

    def _deliver(self, message: Any, queue: str) -> None:
        try:
            if len(message["body"]) > MAX_BYTES:
                raise ValueError("body too long")
            super()._deliver(message, queue)  # type: ignore[no-untyped-call]
        except MALFORMED as error:  # JSON but no task message, or its envelope upsets Celery
            log.error("dropped_malformed_message", queue=queue, cause=repr(error)[:200])
            self._forget(message)

    def _forget(self, message: Any) -> None:
        """A dropped message that was already counted as delivered would come back at the next reconnect."""
        properties = message.get("properties") if isinstance(message, dict) else None
        tag = properties.get("delivery_tag") if isinstance(properties, dict) else None
        for channel in self.channels if isinstance(tag, str) else ():
            if tag in channel.qos._delivered:
                channel.qos.ack(tag)
