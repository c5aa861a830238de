"""A whole fleet that is made to suffer, and the check of what became of it.

The run reaches PostgreSQL and Valkey through wires; both are supervised here, so that a fault decides when they come back.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import redis

from models.errors import ServiceError
from ops import services
from ops.bench.rig import Rig
from ops.simulator import answers
from ops.simulator.process import Simulator
from tests.chaos.wire import Wire
from tests.flows.job import account, job

SEED = int(os.environ.get("SEED", "1"))
ROWS, IN_FLIGHT = 300, 60
QUICK = {"DRAFTMILL_HEARTBEAT_S": "1", "DRAFTMILL_DEAD_AFTER_S": "10", "DRAFTMILL_REAP_EVERY_S": "1", "DRAFTMILL_GRACE_S": "3"}
BEHAVIOUR: dict[str, Any] = {
    "lengths": "uniform", "min_length": 50, "max_length": 300, "tokens_per_s": 60, "reasoning_share": 0.0,
    "profile": "smollm2", "keepalive_s": 0.0}
ROWS_OF = """
select s.key, md5(c.ids || c.prompt_ids) from completion c join sample s on s.id = c.sample_id"""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the checker found; `paid_twice` counts prompts for which more than one answer was billed."""

    lost: int
    duplicated: int
    different: int
    paid_twice: int
    bound: int
    unseen: int            # calls of the provider without an attempt in our ledger
    recovered_s: float
    remark: str = ""

    @property
    def kept(self) -> bool:
        return not (self.lost or self.duplicated or self.different or self.unseen) and self.paid_twice <= self.bound

    def __str__(self) -> str:
        bound = f" (at most {self.bound:,})" if self.bound else ""
        again = f"; works again after {self.recovered_s:.1f} s" if self.recovered_s else ""
        return (f"lost {self.lost}, doubled {self.duplicated}, different {self.different}; "
                f"paid twice {self.paid_twice:,}{bound}, unseen {self.unseen}{again}{'; ' * bool(self.remark)}{self.remark}")


class Fleet:
    """`run` starts the job; verbs do the harm; `ended` waits and checks. `twice` grows by what a fault may cost."""

    def __init__(self, folder: Path, seed: int, env: dict[str, str], behaviour: dict[str, Any]) -> None:
        self.folder, self.random, self._env = folder, random.Random(seed), env
        self.simulator = Simulator(**{**BEHAVIOUR, **behaviour})
        self.twice = 0
        self.recovered_s = 0.0
        self.remark = ""
        self._paused = threading.Event()
        self._over = threading.Event()

    # -- life

    @contextmanager
    def standing(self) -> Iterator["Fleet"]:
        with self.simulator, services.start(self.folder / "services") as self.services, \
                Wire(self.services.database_url) as self.database, Wire(self.services.redis_url) as self.broker:
            self.rig = Rig(self.folder, **self._env, DRAFTMILL_DATABASE_URL=self.database.url,
                           DRAFTMILL_REDIS_URL=self.broker.url)
            keeper = threading.Thread(target=self._keep_services, daemon=True)
            keeper.start()
            try:
                yield self
            finally:
                self.rig.kill_everything()
                self._over.set()
                keeper.join()

    def _keep_services(self) -> None:
        while not self._over.wait(0.3):
            if not self._paused.is_set():
                with suppress(ServiceError):
                    self.services.restart_dead()

    def plan(self, rows: int = ROWS, in_flight: int = IN_FLIGHT, **more: Any) -> str:
        self.rows = rows
        return job(self.rig, {"router": account(self.simulator.openrouter)}, {"B1": rows}, in_flight=in_flight,
                   **{"waste_bound": 100.0, **more})

    def run(self, *arguments: str, rows: int = ROWS, in_flight: int = IN_FLIGHT, **more: Any) -> None:
        """Start it, and wait until a tenth is answered."""
        self.start(*arguments, rows=rows, in_flight=in_flight, **more)
        self.answered(rows // 10)

    def start(self, *arguments: str, rows: int = ROWS, in_flight: int = IN_FLIGHT, **more: Any) -> None:
        self._command = ["run", "--plan", self.plan(rows, in_flight, **more), "--no-export", "--long-workers", "0", *arguments]
        self.rig.start(*self._command)

    def again(self) -> None:
        self.rig.start(*self._command)

    def spawn(self, *arguments: str, **env: str) -> subprocess.Popen[bytes]:
        """A process beside the run."""
        with self.rig.log.open("ab") as log:
            return subprocess.Popen([sys.executable, "-P", *arguments], cwd=self.folder, env={**self.rig.environment, **env},
                                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def rests(self, seconds: float) -> bool:
        """Let time pass, so long as the run has not ended; always true."""
        if self.rig.process is not None:
            with suppress(subprocess.TimeoutExpired):
                self.rig.process.wait(seconds)
        return True

    # -- looking

    @property
    def complete(self) -> int:
        return int(self.simulator.summary()["complete"])

    @property
    def in_flight(self) -> int:
        return int(self.simulator.summary()["in_flight"])

    def answered(self, more: int = 1, deadline_s: float = 240) -> float:
        """Seconds until so many more answers were given."""
        before = self.complete
        return self.rig.wait(lambda: self.complete >= before + more, deadline_s, f"{more} more answers after {before}")

    def query(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Not through the wire."""
        url = self.services.database_url.replace("+psycopg", "")
        with psycopg.connect(url, autocommit=True, connect_timeout=60) as connection:
            return connection.execute(statement.encode(), values or None).fetchall()

    def redis(self) -> redis.Redis:
        return redis.Redis.from_url(self.services.redis_url, socket_timeout=10)

    # -- harm

    def workers(self, lane: str = "short") -> list[int]:
        return self.rig.pids("ops worker", lane)

    def kill(self, *words: str) -> int:
        """kill -9 of the run's processes with these words in their command line; what they had in flight may be paid twice."""
        pids = self.rig.pids(*words)
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.twice += self.held(*pids)
        return len(pids)

    def held(self, *pids: int) -> int:
        """Claims of these workers that are neither settled nor rescued."""
        if self.query("select to_regclass('sample')") == [(None,)]:
            return 0
        [(count,)] = self.query("select count(*) from sample s join worker w on w.id = s.worker_id "
                                "where s.state = 1 and w.pid = any(%s)", list(pids))
        return int(count)

    def released(self, pid: int) -> int:
        """Calls that a worker cut short because it was told to stop."""
        [(count,)] = self.query("select count(*) from attempt a join worker w on w.id = a.worker_id "
                                "where a.code = 'shutdown' and a.basis <> 'none' and w.pid = %s", pid)
        return int(count)

    def send(self, number: signal.Signals, *pids: int) -> None:
        for pid in pids:
            os.kill(pid, number)

    @contextmanager
    def away(self, name: str, number: signal.Signals = signal.SIGKILL) -> Iterator[None]:
        """The service `valkey` or `postgres` ended by a signal, and not started again in the block."""
        self._paused.set()
        try:
            pid = self.services.pids[name]
            os.kill(pid, number)
            self.until_gone(pid)
            yield
        finally:
            self._paused.clear()

    def kill_everything(self) -> None:
        """kill -9 of the command, its processes and both services, which come back."""
        self._paused.set()
        pids = self.workers()
        self.rig.kill_everything()
        for pid in self.services.pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._paused.clear()
        until(self._answer, 100, "services")
        self.twice += self.held(*pids)

    def _answer(self) -> bool:
        with suppress(psycopg.Error):
            return self.query("select 1") == [(1,)]
        return False

    @staticmethod
    def until_gone(pid: int, deadline_s: float = 20) -> None:
        end = time.monotonic() + deadline_s
        while time.monotonic() < end:
            try:
                if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                    return
            except OSError:
                return
            time.sleep(0.05)
        raise AssertionError(f"process {pid} does not end")

    def recovers(self, deadline_s: float = 240) -> None:
        """Wait until three more rows are stored; how long that takes at worst is part of the outcome."""
        begun, seen = time.monotonic(), list[int]()

        def stored() -> int:
            [(done,)] = self.query("select coalesce(sum(done), 0) from dataset")
            seen.append(int(done))
            return seen[-1]
        self.rig.wait(lambda: stored() >= min(seen[0] + 3, self.rows), deadline_s, "new rows")
        self.recovered_s = max(self.recovered_s, time.monotonic() - begun)

    # -- the check

    def ended(self, undisturbed: dict[str, str], deadline_s: float = 300) -> Outcome:
        """Wait for the run's own end, and compare."""
        assert self.rig.process is not None
        code = self.rig.process.wait(deadline_s)
        assert code == 0, f"the run ended with {code}:\n{self.rig.tail()}"
        return self.outcome(undisturbed)

    def outcome(self, undisturbed: dict[str, str]) -> Outcome:
        check_sums(self)
        rows = self.query(ROWS_OF)
        found = dict(rows)
        expected = {k: v for k, v in undisturbed.items() if int(k.rpartition("-")[2]) < self.rows}
        return Outcome(
            lost=len(expected.keys() - found.keys()), duplicated=len(rows) - len(found),
            different=sum(found[k] != v for k, v in expected.items() if k in found),
            paid_twice=self.simulator.summary()["paid_twice"], bound=self.twice, unseen=self.unseen(),
            recovered_s=self.recovered_s, remark=self.remark)

    def unseen(self) -> int:
        """Calls the provider served for a prompt beyond the attempts that our ledger has of it."""
        attempts = Counter(dict(self.query(
            "select s.key, count(*) from attempt a join sample s on s.id = a.sample_id group by 1")))
        names = {digest(f"Question {i} of B1: what is {i} times {i + 1}?"): f"B1-{i}" for i in range(self.rows)}
        calls = Counter(names[record["prompt"]] for record in self.simulator.ledger() if record["prompt"] in names)
        assert calls, "the simulator's ledger is not of these prompts"
        return sum((calls - attempts).values())


def digest(prompt: str) -> str:
    """As the simulator names a prompt in its ledger."""
    return answers.digest([{"role": "user", "content": prompt}]).hex()


def check_sums(fleet: Fleet) -> None:
    """Counters are sums over rows, nothing is reserved, and each sample has exactly one end."""
    assert fleet.query("select name from dataset where reserved_tokens <> 0 or reserved_nusd <> 0 or running <> 0") == []
    assert fleet.query("""
        select d.name from dataset d
        left join (select dataset_id, count(*) n, sum(n_tokens) t from completion group by 1) c on c.dataset_id = d.id
        left join (select dataset_id, sum(coalesce(prompt_tokens, 0) + coalesce(completion_tokens, 0)) t,
                     sum(coalesce(cost_nusd, 0)) usd from attempt group by 1) a on a.dataset_id = d.id
        where d.done <> coalesce(c.n, 0) or d.stored_tokens <> coalesce(c.t, 0) or d.billed_tokens <> coalesce(a.t, 0)
          or d.spent_nusd <> coalesce(a.usd, 0)""") == []
    assert fleet.query("""
        select s.id from sample s full join completion c on c.sample_id = s.id
        where coalesce(s.state = 2, false) <> (c.sample_id is not null)""") == []
    assert fleet.query("select id from sample where state = 3 and reason is null or state = 1") == []


def until(truth: Callable[[], Any], deadline_s: float = 60, what: str = "") -> Any:
    end = time.monotonic() + deadline_s
    while not (value := truth()):
        assert time.monotonic() < end, f"never came true: {what}"
        time.sleep(0.2)
    return value
