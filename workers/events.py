"""Task events in batches. Celery publishes them at every turn of its hub, which is a third of its CPU per task [py-spy]."""

from typing import Any

from celery import bootsteps
from kombu.common import ignore_errors

FLUSH_EVERY_S = 0.25
AT_MOST = 1_000      # events of one message


class EventBatches(bootsteps.StartStopStep):  # type: ignore[misc]
    """Flower sees what happened a quarter of a second later."""

    requires = ("celery.worker.consumer.events:Events",)

    def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
        """Called at each connect; Celery cancels the timer when the connection is lost."""
        consumer.event_dispatcher.on_send_buffered, consumer.event_dispatcher.buffer_limit = None, AT_MOST
        hub.call_repeatedly(FLUSH_EVERY_S, self._flush, consumer)

    def shutdown(self, consumer: Any) -> None:
        """What the drain has told since the last batch."""
        ignore_errors(consumer, self._flush, consumer)  # type: ignore[no-untyped-call]

    @staticmethod
    def _flush(consumer: Any) -> None:
        if consumer.event_dispatcher:
            consumer.event_dispatcher.flush()
