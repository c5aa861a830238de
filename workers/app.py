"""The Celery application and its worker: the one place where Celery, the pool and the transport are put together."""

import logging
import signal
import socket
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import structlog
from celery import Celery
from celery.apps import worker as celery_worker
from celery.platforms import EX_FAILURE, EX_OK, SecurityWarning
from celery.signals import setup_logging
from celery.worker import state

from models.errors import SettingsError
from models.hint import TASK, Hints, broker_settings
from models.settings import Settings
from models.states import Lane
from workers.events import EventBatches
from workers.pool import AsyncTask, Life, TaskPool
from workers.subscription import Subscription, queue
from workers.watchdog import Watchdog

log = structlog.get_logger(__name__)

Generate = Callable[[int, str, str], Awaitable[None]]   # sample id, dataset name, lane

WORKER = {
    "broker_transport": "workers.transport:Transport",
    "task_acks_late": False,
    "worker_disable_prefetch": True,       # without it a worker hoards as many hints again as it has slots
    "worker_prefetch_multiplier": 1,
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    "worker_eta_task_limit": 100,
    "worker_redirect_stdouts": False,
    "worker_hijack_root_logger": False,
    "worker_send_task_events": True,
}


def make_app(settings: Settings, generate: Generate | None = None, life: Life | None = None) -> Celery:
    """Celery's app. With `generate` it can work; without it can only send remote control (Flower)."""
    if settings.redis_url is None:
        raise SettingsError(cause="DRAFTMILL_REDIS_URL is not set and no services are running here")
    app = Celery("draftmill", amqp="workers.transport:AMQP")
    app.conf.update(broker_settings(settings.redis_url.get_secret_value(), settings.key_prefix))
    app.life = life or Life()
    if generate is not None:
        app.conf.update(WORKER)
        app.task(_checked(generate), name=TASK, base=AsyncTask)
        app.steps["consumer"] |= {Subscription, EventBatches}
    return app


def _checked(generate: Generate) -> Generate:
    """The list in Redis is open to whoever reaches Redis: a hint is three plain values or nothing."""
    async def checked(sample_id: int, dataset: str, lane: str) -> None:
        if type(sample_id) is int and isinstance(dataset, str) and isinstance(lane, str):
            await generate(sample_id, dataset, lane)
        else:
            log.error("dropped_malformed_hint")
    return checked


class Worker(celery_worker.Worker):  # type: ignore[misc]
    """Celery's worker with this house's signals: the first asks it to drain, a second (or SIGQUIT) cancels at once."""

    def install_platform_tweaks(self, worker: Any) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: Any) -> None:
        if number == signal.SIGQUIT or state.should_stop is not None:
            self.pool.hurry()
        state.should_stop = EX_OK

    def set_process_status(self, info: str) -> None:
        """The title stays as the process was started."""


def run_worker(settings: Settings, lane: Lane, concurrency: int, name: str, generate: Generate, life: Life,
               deaf_after_s: float = 60.0) -> int:
    """Work until a signal ends it; the exit code. Must be called on the main thread, once in a process.

    A worker consumes from its lane's own queue, which nothing is sent to, and from `life.wanted_queues()`.
    """
    async def startup() -> None:
        await life.startup()
        watchdog.start()

    async def shutdown() -> None:
        await life.shutdown()
        await watchdog.close()

    app = make_app(settings, generate, replace(life, startup=startup, shutdown=shutdown))
    app.conf.task_queues = [queue(lane.label)]
    _quieten()
    worker = Worker(
        app=app, hostname=name if "@" in name else f"{name}@{socket.gethostname()}", pool_cls=TaskPool,
        concurrency=concurrency, task_events=True, without_gossip=True, without_mingle=True, quiet=True,
    )
    watchdog = Watchdog(
        Hints(app.conf.broker_url, settings.key_prefix), lambda: worker.pool,
        queues=lambda: list(app.amqp.queues.consume_from), stop=_stop_as_failed, deaf_after_s=deaf_after_s,
    )
    log.info("worker_starts", lane=lane.label, concurrency=concurrency, worker=worker.hostname)
    worker.start()
    return int(worker.exitcode or EX_OK)


def _stop_as_failed() -> None:
    state.should_stop = EX_FAILURE


def _quieten() -> None:
    """Whoever starts the process has set up logging: a receiver of this signal keeps Celery from doing it again."""
    setup_logging.connect(_keep_logging)
    for chatty in ("celery.worker.strategy", "celery.app.trace"):   # two lines for each sample
        logging.getLogger(chatty).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", category=SecurityWarning)     # of root and pickle; only JSON is accepted


def _keep_logging(**_: Any) -> None:
    pass
