"""A broker that may be killed, and real workers in their own processes."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import pytest
from redis import Redis

from models.hint import Hints, queue_of
from models.states import Lane
from ops.valkey import Valkey
from tests.hand import Hand
from tests.workers.mill import Mill, milling
from tests.workers.providers.conftest import Scripted, serving

TOY = Path(__file__).parent / "toy_worker.py"
PATIENCE_S = 30.0


def until(truth, patience_s=PATIENCE_S):
    """Waits for a condition and returns what it gave; fails when it never holds."""
    end = time.monotonic() + patience_s
    while not (value := truth()):
        assert time.monotonic() < end, f"never came true: {truth}"
        time.sleep(0.02)
    return value


class Broker:
    """A Valkey of one test: `kill` is kill -9, `start` brings it back on its port, with its data or `empty`."""

    def __init__(self, home: Path) -> None:
        for folder in ("logs", "run"):
            (home / folder).mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._valkey = Valkey(home, free.getsockname()[1], "broker-password")
        self.url = self._valkey.url
        self.start()

    def start(self, empty: bool = False) -> None:
        command = self._valkey.command()
        if empty:
            shutil.rmtree(command.cwd / "appendonlydir", ignore_errors=True)
        with command.log.open("ab") as log:
            self._process = subprocess.Popen(command.argv, stdout=log, stderr=log, env=command.env, cwd=command.cwd)
        until(self._valkey.ready)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)


@pytest.fixture
def broker(tmp_path):
    broker = Broker(tmp_path)
    yield broker
    broker.kill()


@pytest.fixture(name="until")
def _until():
    return until


@dataclass
class Told:
    """One thing a toy worker told: `what` is ready, began, ended, cancelled, startup, shutdown."""

    at: float
    what: str
    sample_id: int = 0
    dataset: str = ""


class ToyWorker:
    """The real Celery worker of workers/app.py in a process, working on toy coroutines."""

    def __init__(self, folder: Path, number: int, broker_url: str, *, slots: int, queues: list[str], **settings):
        self.diary, self.log, self.wanted = (folder / f"{kind}.{number}" for kind in ("diary", "log", "wanted"))
        self.diary.touch()
        self.want(queues)
        settings = {"name": f"toy{number}", "slots": slots, "redis_url": broker_url, **settings}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error::ResourceWarning", TOY, self.diary, self.wanted, json.dumps(settings)],
                stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": str(TOY.parents[2])},
            )

    def want(self, queues: list[str]) -> None:
        self.wanted.with_suffix(".new").write_text("\n".join(queues))
        self.wanted.with_suffix(".new").replace(self.wanted)

    def told(self, what: str | None = None) -> list[Told]:
        lines = [line.split(" ") for line in self.diary.read_text().splitlines()]
        told = [Told(float(at), what, int(sample), dataset) for at, what, sample, dataset in lines]
        return [t for t in told if what in (None, t.what)]

    def ids(self, what: str) -> list[int]:
        return [t.sample_id for t in self.told(what)]

    def in_flight(self) -> list[int]:
        """How many were running after each beginning and end."""
        return list(accumulate({"began": 1, "ended": -1, "cancelled": -1}.get(t.what, 0) for t in self.told()))

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def exit_code(self, patience_s: float = PATIENCE_S) -> int:
        return self.process.wait(patience_s)

    def output(self) -> str:
        return self.log.read_text(errors="replace")


@pytest.fixture
def crew(tmp_path, request):
    """Starts toy workers on the given broker; waits until each is ready; kills what is left."""
    workers: list[ToyWorker] = []

    def hire(broker_url: str, *, slots: int, queues: list[str], wait: bool = True, **settings) -> ToyWorker:
        workers.append(ToyWorker(tmp_path, len(workers), broker_url, slots=slots, queues=queues, **settings))
        if wait:
            until(lambda: workers[-1].told("ready") or workers[-1].process.poll() is not None)
        return workers[-1]

    yield hire
    for worker in workers:
        if worker.process.poll() is None:
            worker.process.kill()
        worker.process.wait(10)
        if request.node.stash.get(FAILED, False):
            print(worker.output()[-4_000:])


FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        item.stash[FAILED] = True
    return report


@pytest.fixture
def send():
    """Sends hints of a dataset on the short lane."""

    def send(broker_url: str, dataset: str, sample_ids) -> None:
        async def at_once():
            hints = Hints(broker_url, "draftmill:")
            await hints.send(queue_of(Lane.SHORT, dataset), dataset, Lane.SHORT, list(sample_ids))
            await hints.close()

        asyncio.run(at_once())

    return send


@pytest.fixture
def waiting():
    """How many hints of a dataset wait on the short lane."""

    def waiting(broker_url: str, dataset: str) -> int:
        with Redis.from_url(broker_url) as redis:
            return redis.llen("draftmill:" + queue_of(Lane.SHORT, dataset))

    return waiting


@pytest.fixture
async def server() -> AsyncIterator[Scripted]:
    async with serving() as scripted:
        yield scripted


@pytest.fixture
async def mill(store: Hand, server: Scripted, tmp_path: Path) -> AsyncIterator[Mill]:
    async with milling(store, tmp_path, server.url) as one:
        yield one
