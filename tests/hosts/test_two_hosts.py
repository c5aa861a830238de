"""Two hosts, workers on both: one is cut off and comes back, and nothing is lost."""

import json
import os
import signal
import subprocess
import time
from base64 import b64encode
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from models.settings import environment
from ops.bench.rig import Rig
from ops.simulator.process import Simulator
from tests.flows.job import KEY, check_counters, totals
from tests.hosts.net import HERE, Host, missing, offered

ROWS = 600
CUT_S = float(os.environ.get("DRAFTMILL_TEST_CUT_S", "30"))
ANSWERS: dict[str, Any] = {"lengths": "uniform", "min_length": 50, "max_length": 250, "tokens_per_s": 25, "reasoning_share": 0.0,
                           "profile": "smollm2", "keepalive_s": 0.0}


def plan(rig: Rig, base_url: str) -> str:
    rig.prompts("B1", [{"id": f"q{i}", "prompt": f"Question {i}: what is {i} times {i + 1}?"} for i in range(ROWS)])
    return str(rig.plan({"accounts": {"router": {"base_url": base_url, "slow_start": False}}, "datasets": {"B1": {
        "prompts": "prompts/B1.jsonl", "profile": "smollm2", "model": "a/model", "account": "router", "promote": False,
        "short": {"max_tokens": 500, "concurrency": 30}, "long": {"max_tokens": 1_000, "concurrency": 2}}}}))


def key_file(folder: Path) -> str:
    file = folder / "key.txt"
    file.write_text(KEY + "\n")
    file.chmod(0o600)
    return str(file)


def over_there(url: str) -> str:
    return url.replace("127.0.0.1", HERE)


def flower(rig: Rig, path: str) -> dict[str, Any]:
    """From the log's line `Flower: http://...  user draftmill, password ...`."""
    line = next(line for line in rig.tail(100_000).splitlines() if line.startswith("Flower: "))
    address, login = line.split()[1], f"draftmill:{line.split()[-1]}"
    request = Request(address + path, headers={"Authorization": "Basic " + b64encode(login.encode()).decode()})
    with urlopen(request, timeout=20) as reply:
        return dict(json.loads(reply.read()))


def seen(rig: Rig) -> dict[str, bool]:
    """Flower's workers of the short lane by host -> whether they are alive."""
    return {name.partition("@")[2]: alive for name, alive in flower(rig, "/api/workers?status=true").items()
            if name.startswith("short")}


def done_by(rig: Rig, host: str, after: float = 0.0) -> int:
    [(n,)] = rig.query("""select count(*) from attempt a join worker w on w.id = a.worker_id
        where w.host = %s and a.action = 'done' and a.ended_at > to_timestamp(%s)""", host, after)
    return int(n)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_host_is_cut_off_and_comes_back_and_nothing_is_lost(rig: Rig) -> None:
    if why := missing():
        pytest.skip(why)
    here = os.uname().nodename
    rig.environment["DRAFTMILL_API_KEY_FILE"] = key_file(rig.folder)
    with Simulator(**ANSWERS) as simulator, Host("host-b") as host:
        asked = int(simulator.url.rsplit(":", 1)[1])
        with offered(asked):
            run = rig.start("run", "--plan", plan(rig, over_there(simulator.openrouter)), "--no-export")
            rig.wait(lambda: done_by(rig, here) > 0, 120, "answers on the first host")
            urls = rig.urls()
            with offered(urls["ports"]["postgres"], urls["ports"]["valkey"]):
                other = join(rig, host, urls)
                try:
                    live_through_a_cut(rig, host, here)
                    other.send_signal(signal.SIGTERM)
                    assert other.wait(90) == 0
                finally:
                    other.kill()
                assert run.wait(200) == 0, rig.tail()
        with rig.services():
            check_nothing_lost(rig, simulator, here)


def join(rig: Rig, host: Host, urls: dict[str, Any]) -> subprocess.Popen[bytes]:
    """A worker over there, which is given two URLs and a key file, and nothing else."""
    home = rig.folder / "there"
    home.mkdir()
    bare = {k: v for k, v in environment().items() if not k.startswith("DRAFTMILL_")}
    env = {**bare, "DRAFTMILL_DATABASE_URL": over_there(urls["database_url"]),
           "DRAFTMILL_REDIS_URL": over_there(urls["redis_url"]), "DRAFTMILL_API_KEY_FILE": key_file(home)}
    return host.start(home / "worker.log", env, "worker", "short", "-c", "30", "-n", "short-b")


def live_through_a_cut(rig: Rig, host: Host, here: str) -> None:
    rig.wait(lambda: done_by(rig, "host-b") >= 10, 90, "answers on the second host")
    rig.wait(lambda: seen(rig) == {here: True, "host-b": True}, 30, "both hosts in Flower")
    host.cut()
    cut_at = time.time()
    rig.wait(lambda: not seen(rig)["host-b"], 60, "Flower to miss the host that is cut off")
    before = done_by(rig, here)
    rig.wait(lambda: rig.query("select died_at is not null from worker where host = 'host-b'") == [(True,)], 60, "its death")
    rig.wait(lambda: time.time() - cut_at > CUT_S, CUT_S + 10)
    assert done_by(rig, here) > before, "the first host goes on meanwhile"
    mended_at = time.time()
    host.mend()
    again = "select count(distinct id) >= 2 from worker where host = 'host-b'"
    rig.wait(lambda: rig.query(again) == [(True,)], 90, "its new name")      # what comes before is refused by its fence
    rig.wait(lambda: done_by(rig, "host-b", mended_at) >= 10, 90, "answers on the second host again")
    rig.wait(lambda: seen(rig) == {here: True, "host-b": True}, 30, "both hosts in Flower again")


def check_nothing_lost(rig: Rig, simulator: Simulator, here: str) -> None:
    found = totals(rig)["B1"]
    assert (found["done"], found["failed"], found["queued"]) == (ROWS, 0, 0)
    check_counters(rig)
    summary = simulator.summary()
    # What was under way over there when it was cut off is asked again, and nothing else is.
    assert summary["calls"] - ROWS <= 60, summary
    assert rig.query("select count(*) from attempt where action is null") == [(0,)]
    assert rig.query("select count(distinct id) >= 2 from worker where host = 'host-b'") == [(True,)]
