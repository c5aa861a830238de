"""Which queues a worker consumes from: those of its lane's open datasets, asked for while it runs."""

import asyncio
from concurrent.futures import Future
from typing import Any

import structlog
from celery import bootsteps
from kombu.entity import Queue

log = structlog.get_logger(__name__)

ASK_EVERY_S = 0.5
ANSWER_WITHIN_S = 20.0


def queue(name: str) -> Queue:
    """A queue that leaves nothing in Redis but its list: producers push to the list and need no binding."""
    return Queue(name, routing_key=name, no_declare=True)  # type: ignore[no-untyped-call]


class Subscription(bootsteps.StartStopStep):  # type: ignore[misc]
    """Runs on the hub thread and asks on the pool's loop, so that a slow answer stops neither.

    Celery keeps added queues over a reconnect; a cancelled queue's hint that was already under way goes back to its list.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._always = frozenset(consumer.app.amqp.queues)
        self._asked: Future[set[str]] | None = None

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        """Called at each connect; Celery cancels the timer when the connection is lost."""
        self._ask(consumer, hub)
        hub.call_repeatedly(ASK_EVERY_S, self._ask, consumer, hub)

    def _ask(self, consumer: Any, hub: Any) -> None:
        if self._asked is None or self._asked.done():
            self._asked = asyncio.run_coroutine_threadsafe(self._wanted(consumer), consumer.pool.loop)
            self._asked.add_done_callback(lambda answer: hub.call_soon(self._apply, consumer, answer))

    @staticmethod
    async def _wanted(consumer: Any) -> set[str]:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            wanted: set[str] = await consumer.app.life.wanted_queues()
            return wanted

    def _apply(self, consumer: Any, answer: "Future[set[str]]") -> None:
        if answer.cancelled() or consumer.blueprint.state != bootsteps.RUN or not consumer.task_consumer:
            return
        if error := answer.exception():
            log.warning("queues_unknown", cause=repr(error))
            return
        queues = consumer.app.amqp.queues
        wanted, current = answer.result() | self._always, set(queues.consume_from)
        for name in sorted(wanted - current):
            queues.select_add(queue(name))
            consumer.add_task_queue(name)
        for name in sorted(current - wanted):
            consumer.cancel_task_queue(name)
