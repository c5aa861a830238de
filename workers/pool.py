"""An asyncio pool for Celery's worker, which has none (docs/decisions/0002; celery/celery#10634).

Hub thread   Celery's main thread: takes hints, acknowledges, sends events, obeys remote control. Runs none of our code.
Loop thread  one event loop; every accepted task is one asyncio task on it, so 2,000 of them are 2,000 sockets.

A task is accepted, and so acknowledged, only when a slot is free: what waits stays in Redis for other workers.
Celery's tracer is a plain function around a coroutine. It runs in a greenlet, and `AsyncTask` drives the coroutine inside
that greenlet, so task_prerun, task_postrun and runtimes are true and `self.request` works.
"""

import asyncio
import sys
import threading
import time
import types
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import structlog
import uvloop
from billiard.einfo import ExceptionInfo
from celery import Task
from celery.concurrency.base import BasePool
from celery.exceptions import Terminated
from greenlet import getcurrent, greenlet

log = structlog.get_logger(__name__)


async def _nothing() -> None:
    pass


async def _no_queues() -> set[str]:
    return set()


@dataclass(frozen=True, slots=True)
class Life:
    """What happens on the pool's loop around the tasks; an app carries it as `app.life`.

    startup: awaited before the first hint is taken; an exception ends the worker with exit code 1.
    wanted_queues: the queues to consume from, asked every other second; an exception leaves them as they are.
    shutdown: awaited after the last task has ended.
    grace_s: how long tasks may go on after a stop; then they are cancelled and have cancel_grace_s to clean up.
    """

    startup: Callable[[], Awaitable[None]] = _nothing
    wanted_queues: Callable[[], Awaitable[set[str]]] = _no_queues
    shutdown: Callable[[], Awaitable[None]] = _nothing
    grace_s: float = 30.0
    cancel_grace_s: float = 10.0
    startup_s: float = 60.0


class _Tracer(greenlet):  # type: ignore[misc]
    """The greenlet of one traced task. Its parent is the loop thread's own."""


class AsyncTask(Task):  # type: ignore[misc]
    """The base of `async def` tasks. Such a task runs only in a TaskPool."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        coroutine, loop_side = self.run(*args, **kwargs), getcurrent().parent
        step, given = coroutine.send, None
        while True:  # run up to the next await, let the loop wait for it
            try:
                waiting = step(given)
            except StopIteration as stop:
                return stop.value
            try:
                step, given = coroutine.send, loop_side.switch(waiting)
            except BaseException as error:  # noqa: BLE001  the future's error, or CancelledError: the coroutine's to handle
                step, given = coroutine.throw, error


@types.coroutine
def _wait_for(future: Any) -> Generator[Any, Any, Any]:
    return (yield future)


async def _trace(target: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Celery's (failed, value, runtime) of one task; the greenlet's end is the coroutine's."""
    tracer = _Tracer(target)
    tracer.gr_context = getcurrent().gr_context
    waiting = tracer.switch(*args, **kwargs)
    while not tracer.dead:
        try:
            value = await _wait_for(waiting)
        except BaseException as error:  # noqa: BLE001  thrown again inside the tracer
            waiting = tracer.throw(error)
        else:
            waiting = tracer.switch(value)
    return waiting


class TaskPool(BasePool):  # type: ignore[misc]
    """Celery's pool interface. `loop` is the running loop for whoever has something to do beside the tasks."""

    signal_safe = False           # a stop is carried out by the hub, not by a signal handler
    task_join_will_block = False
    loop: asyncio.AbstractEventLoop
    limit: int

    def on_start(self) -> None:
        self.life: Life = getattr(self.app, "life", Life())
        self._slots: dict[int, tuple[Any, Any]] = {}       # handle -> (callback, error_callback); hub thread only
        self._waiting: deque[tuple[Any, ...]] = deque()    # reserved, not accepted (after a shrink); hub thread only
        self._tasks: dict[int, asyncio.Task[Any]] = {}     # loop thread only
        self.taken = 0                                     # hints accepted so far; the last one's handle
        self._hub: Any = None
        self._hurried = False
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._live, name="coroutines", daemon=True)
        self._thread.start()
        self._started.result(self.life.startup_s)

    def register_with_event_loop(self, hub: Any) -> None:
        """Called again after every reconnect."""
        self._hub = hub

    @property
    def busy(self) -> int:
        """Slots in use."""
        return len(self._slots)

    @property
    def free(self) -> int:
        return max(0, self.limit - self.busy)

    # hub thread: accept

    def on_apply(self, target: Any, args: Any = (), kwargs: Any = None, callback: Any = None,
                 accept_callback: Any = None, error_callback: Any = None, **_: Any) -> None:
        self._waiting.append((target, args, kwargs or {}, callback, accept_callback, error_callback))
        self._fill()

    def _fill(self) -> None:
        while self._waiting and len(self._slots) < self.limit:
            target, args, kwargs, callback, accept_callback, error_callback = self._waiting.popleft()
            self.taken += 1
            self._slots[self.taken] = callback, error_callback
            self.loop.call_soon_threadsafe(self._spawn, self.taken, target, args, kwargs)
            _call(accept_callback, self.taken, time.monotonic())

    def flush(self) -> None:
        """The connection was lost. What was not accepted is a lost hint; the reaper sends it again."""
        self._waiting.clear()

    # loop thread

    def _live(self) -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(self._serve())
        except BaseException as error:  # startup failed, or never ended: the hub thread is told
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _serve(self) -> None:
        self.loop, self._leave = asyncio.get_running_loop(), asyncio.Event()
        await self.life.startup()
        self._started.set_result(None)
        await self._leave.wait()
        await self.life.shutdown()

    def _spawn(self, handle: int, target: Any, args: Any, kwargs: Any) -> None:
        task = self._tasks[handle] = self.loop.create_task(_trace(target, args, kwargs))
        task.add_done_callback(lambda task: self._ended(handle, task))

    def _ended(self, handle: int, task: asyncio.Task[Any]) -> None:
        del self._tasks[handle]
        self._hub.call_soon(self._finish, handle, task)  # thread-safe, wakes the hub (kombu >= 5.7)

    def _cancel(self, handle: int | None = None) -> None:
        for task in list(self._tasks.values()) if handle is None else filter(None, [self._tasks.get(handle)]):
            task.cancel()

    # hub thread: finish

    def _finish(self, handle: int, task: asyncio.Task[Any]) -> None:
        callback, error_callback = self._slots.pop(handle)
        failure = Terminated("cancelled") if task.cancelled() else task.exception()
        if failure is None:
            _call(callback, task.result())
        else:  # cancelled, or the tracer itself failed: Celery wants the traceback of a raised exception
            try:
                raise failure
            except type(failure):
                _call(error_callback, ExceptionInfo(sys.exc_info()))
        self._fill()

    # remote control

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        self.loop.call_soon_threadsafe(self._cancel, pid)

    def grow(self, n: int = 1) -> None:
        self.limit += n
        self._fill()

    def shrink(self, n: int = 1) -> None:
        self.limit = max(0, self.limit - n)

    def _get_info(self) -> dict[str, Any]:
        return {**super()._get_info(), "busy": self.busy, "waiting": len(self._waiting)}

    # stop

    def hurry(self) -> None:
        """End the grace now. May be called from a signal handler."""
        self._hurried = True

    def on_stop(self) -> None:
        self._waiting.clear()
        deadline = time.monotonic() + self.life.grace_s
        self._turn(lambda: self._hurried or time.monotonic() > deadline)
        if self._slots:
            log.warning("cancelling", tasks=len(self._slots))
            self.loop.call_soon_threadsafe(self._cancel)
            deadline = time.monotonic() + self.life.cancel_grace_s
            self._turn(lambda: time.monotonic() > deadline)
        self.loop.call_soon_threadsafe(self._leave.set)
        self._thread.join(self.life.cancel_grace_s)

    def on_terminate(self) -> None:
        self.hurry()
        self.on_stop()

    def _turn(self, over: Callable[[], bool]) -> None:
        """Keep the hub turning (events, heartbeats, inspect) until no slot is in use or the time is over."""
        if self._hub is None:
            return
        tick, turns = self._hub.timer.call_repeatedly(0.25, lambda: None), None  # bounds each poll
        while self._slots and not over():
            try:
                turns = turns or self._hub.create_loop()
                next(turns)
            except Exception as error:  # noqa: BLE001  Redis may be away: the coroutines go on without it
                log.warning("draining_without_broker", cause=repr(error))
                turns = None
                time.sleep(0.25)
        tick.cancel()


def _call(callback: Any, *args: Any) -> None:
    try:
        if callback:
            callback(*args)
    except Exception:  # a callback of Celery's that raises must not take 2,000 requests down with it
        log.exception("callback_failed", callback=repr(callback))
