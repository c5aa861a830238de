"""The story's job against the simulator: budgets met, ledgers that agree, kills and a lost Redis survived."""

import hashlib
import json
from collections import Counter
from typing import Any

import pytest

from ops.bench.rig import Rig
from ops.simulator.process import Simulator

CALLS = "select status, count(*) from attempt where ended_at is not null group by 1"


def prompts(dataset: str, n: int) -> list[dict[str, Any]]:
    return [{"id": f"{dataset}-{i}", "prompt": f"Question {i} of {dataset}: what is {i} times {i + 1}?",
             **({"lane": "long"} if i % 10 == 9 else {})} for i in range(n)]


def plan(rig: Rig, simulator: Simulator, names: list[str], rows: int, *, short: int = 500, long: int = 100,
         max_tokens: int = 2_000, **more: Any) -> str:
    key = rig.folder / "key.txt"
    key.write_text("sk-or-test-0123456789abcdef\n")
    key.chmod(0o600)
    datasets = {}
    for name in names:
        rig.prompts(name, prompts(name, rows))
        datasets[name] = {"prompts": f"prompts/{name}.jsonl", "profile": "smollm2", "model": "moonshotai/kimi-k2.5",
                          "account": "router", "short": {"max_tokens": max_tokens, "concurrency": short},
                          "long": {"max_tokens": 2 * max_tokens, "concurrency": long}, "promote": False, **more}
    return str(rig.plan({"output_dir": "out", "accounts": {"router": {
        "kind": "openrouter", "base_url": simulator.openrouter, "api_key_file": "key.txt", "slow_start": False}},
        "datasets": datasets}))


def digest(messages: list[dict[str, Any]]) -> str:
    return hashlib.sha256(json.dumps(messages, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()[:16]


def totals(rig: Rig) -> dict[str, dict[str, Any]]:
    code, out = rig.command("status", "--json")
    assert code == 0, out
    return {d["name"]: d for d in json.loads(out.strip().splitlines()[-1])["datasets"]}


def check_counters(rig: Rig) -> None:
    """Counters are sums over rows, nothing is reserved, and each sample has one end."""
    assert rig.query("select count(*) from dataset where reserved_tokens <> 0 or reserved_nusd <> 0 or running <> 0") == [(0,)]
    assert rig.query("""
        select d.name from dataset d left join (select dataset_id, count(*) n, sum(n_tokens) t from completion group by 1) c
          on c.dataset_id = d.id where d.done <> coalesce(c.n, 0) or d.stored_tokens <> coalesce(c.t, 0)""") == []
    assert rig.query("""
        select count(*) from sample s
        where state = 2 and not exists (select from completion c where c.sample_id = s.id)""") == [(0,)]
    assert rig.query("select count(*) from completion c join sample s on s.id = c.sample_id where s.state <> 2") == [(0,)]


def check_ledgers_agree(rig: Rig, simulator: Simulator) -> None:
    """Every call the provider served is an attempt, with the same tokens."""
    served = Counter((c["status"], c["completion_tokens"]) for c in simulator.ledger())
    booked = Counter(rig.query("select status, completion_tokens from attempt where status is not null"))
    assert served == booked


@pytest.mark.timeout(1_000)
@pytest.mark.parametrize(("datasets", "rows", "budget", "max_tokens"), [
    pytest.param(4, 200, 60_000, 1_000, id="quick"),
    pytest.param(8, 400, 200_000, 2_000, id="full", marks=pytest.mark.slow)])
def test_datasets_close_within_two_percent_of_their_budget_and_finished_ones_are_skipped(
        rig: Rig, datasets: int, rows: int, budget: int, max_tokens: int) -> None:
    with Simulator(lengths="uniform", min_length=100, max_length=max_tokens, tokens_per_s=400, reasoning_share=0.0,
                   profile="smollm2", keepalive_s=0.0) as simulator:
        first = plan(rig, simulator, ["B1", "B2"], rows, max_tokens=max_tokens, token_budget=budget)
        code, out = rig.command("run", "--plan", first, timeout_s=300)
        assert code == 0, out
        asked = simulator.summary()["calls"]
        names = [f"B{i + 1}" for i in range(datasets)]
        every = plan(rig, simulator, names, rows, max_tokens=max_tokens, token_budget=budget)
        code, out = rig.command("run", "--plan", every, timeout_s=600)
        assert code == 0, out
        assert "B1: skipped" in out
        assert "B2: skipped" in out
        assert simulator.summary()["calls"] > asked
        with rig.services():
            for name, d in totals(rig).items():
                assert d["closed_reason"] == "budget", (name, d)
                assert 0.98 * budget <= d["stored_tokens"] <= budget, (name, d)
            check_counters(rig)
            check_ledgers_agree(rig, simulator)


@pytest.mark.timeout(400)
def test_after_kill_9_of_everything_the_same_command_finishes_the_job_and_pays_twice_only_what_was_in_flight(rig: Rig) -> None:
    with Simulator(lengths="uniform", min_length=50, max_length=400, tokens_per_s=150, reasoning_share=0.0, profile="smollm2",
                   keepalive_s=0.0) as simulator:
        file = plan(rig, simulator, ["B1", "B2"], 300, short=100, long=20, max_tokens=500)
        rig.start("run", "--plan", file)
        rig.wait(lambda: simulator.summary()["complete"] >= 150, 90, "150 answers")
        in_flight = simulator.summary()["in_flight"]
        assert rig.kill_everything() >= 6
        code, out = rig.command("run", "--plan", file, timeout_s=240)
        assert code == 0, out
        with rig.services():
            assert {n: (d["done"], d["failed"]) for n, d in totals(rig).items()} == {"B1": (300, 0), "B2": (300, 0)}
            check_counters(rig)
            again = simulator.summary()["paid_twice"]
            assert again <= in_flight + 100 + 20


@pytest.mark.timeout(300)
def test_flushall_in_mid_run_loses_nothing(rig: Rig) -> None:
    with Simulator(lengths="uniform", min_length=50, max_length=400, tokens_per_s=150, reasoning_share=0.0, profile="smollm2",
                   keepalive_s=0.0) as simulator:
        file = plan(rig, simulator, ["B1"], 400, short=60, long=10, max_tokens=500)
        process = rig.start("run", "--plan", file)
        rig.wait(lambda: simulator.summary()["complete"] >= 100, 90, "100 answers")
        with rig.redis() as client:
            client.flushall()
        assert process.wait(180) == 0, rig.tail()
        assert simulator.summary()["paid_twice"] == 0
        with rig.services():
            assert totals(rig)["B1"]["done"] == 400


@pytest.mark.timeout(300)
def test_two_worker_processes_on_one_queue_share_the_work(rig: Rig) -> None:
    with Simulator(lengths="uniform", min_length=50, max_length=200, latency_min_s=0.5, latency_max_s=1.0, reasoning_share=0.0,
                   profile="smollm2", keepalive_s=0.0) as simulator:
        file = plan(rig, simulator, ["B1"], 600, short=60, long=10, max_tokens=500)
        code, out = rig.command("run", "--plan", file, "--short-workers", "2", timeout_s=200)
        assert code == 0, out
        with rig.services():
            shares = [n for (n,) in rig.query("""
                select count(*) from attempt a join worker w on w.id = a.worker_id where w.lane = 0 group by w.id""")]
            assert len(shares) == 2
            assert min(shares) > 0.35 * sum(shares), shares
