"""What goes wrong at a provider, whole runs of it: ledgers agree, nothing is failed for what was not its fault."""

import json
import time
from collections import Counter
from typing import Any

import pytest

from ops.bench.rig import Rig
from ops.simulator.process import Simulator
from tests.flows.job import account, check_counters, job, totals, write_key

ANSWERS: dict[str, Any] = {"lengths": "uniform", "min_length": 50, "max_length": 400, "tokens_per_s": 200, "reasoning_share": 0.0,
                           "profile": "smollm2"}
# Reasons for which a sample may fail here: its last attempt, or its second possibly paid one, was lost as well.
ENDS = {"timeout", "body_lost", "connect_failed", "provider_error", "bad_json", "empty_body", "not_json", "no_choices",
        "empty_completion"}


def check_ledgers(rig: Rig, simulator: Simulator) -> None:
    """Call for call and token for token. A call that named no generation (nothing came back) can only be counted."""
    calls = {c["generation_id"]: c for c in simulator.ledger()}
    attempts = rig.query("select generation_id, status, basis, prompt_tokens, completion_tokens, cost_nusd, code from attempt")
    named = {a[0]: a for a in attempts if a[0]}
    assert len(attempts) == len(calls)
    assert named.keys() <= calls.keys()
    assert len(named) == sum(bool(a[0]) for a in attempts)
    for name, (_, status, basis, prompt, completion, cost, code) in named.items():
        call = calls[name]
        assert status == call["status"], (call, code)
        assert (completion, round(cost / 1e9, 6)) == (call["completion_tokens"], round(call["cost"], 6)), (call, basis, code)
        assert prompt == call["prompt_tokens"] or not completion, (call, basis, code)
    unnamed = Counter(c["fault"] for c in calls.values() if c["generation_id"] not in named)
    assert set(unnamed) <= {"stall", "closed"}, unnamed


def check_nobody_paid_for_our_faults(rig: Rig, simulator: Simulator) -> None:
    summary = simulator.summary()
    assert summary["paid_after_complete"] == summary["complete_twice"] == 0
    assert summary["paid_twice"] <= summary["lost"]
    assert rig.query("select code from attempt where status in (429, 402, 529) and action <> 'snooze'") == []
    assert rig.query("""
        select s.key, s.burnt, a.n from sample s join (
          select sample_id, count(*) filter (where action in ('done', 'retry', 'drop')) n from attempt group by 1) a
          on a.sample_id = s.id where s.burnt <> a.n""") == []


def twenty_percent(rig: Rig, rows: int, in_flight: int, **more: Any) -> None:
    with Simulator(**{**ANSWERS, "fault_share": 0.2, "keepalive_s": 0.0, **more}) as simulator:
        file = job(rig, {"router": account(simulator.openrouter)}, {"B1": rows}, in_flight=in_flight, lanes={"deadline_s": 12})
        code, out = rig.command("run", "--plan", file, timeout_s=560)
        assert code in (0, 1), out
        with rig.services():
            found = totals(rig)["B1"]
            assert found["done"] + found["failed"] == rows, found
            assert found["failed"] <= 0.03 * rows, found
            assert set(found["failures"]) <= ENDS, found
            check_counters(rig)
            check_ledgers(rig, simulator)
            check_nobody_paid_for_our_faults(rig, simulator)


@pytest.mark.timeout(300)
def test_with_a_fifth_of_all_calls_failing_every_sample_ends_and_both_ledgers_agree(rig: Rig) -> None:
    twenty_percent(rig, 250, 100)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_2000_samples_at_500_in_flight_with_a_fifth_of_all_calls_failing(rig: Rig) -> None:
    twenty_percent(rig, 2_000, 500, tokens_per_s=60)


def rate(simulator: Simulator, begun: float, ended: float, what: str = "complete") -> float:
    """Per second, over whole seconds of the clock."""
    series = {s["second"]: s[what] for s in simulator.summary(series=True)["seconds"]}
    seconds = range(int(begun) + 1, int(ended))
    return sum(series.get(s, 0) for s in seconds) / max(1, len(seconds))


def brown_out(rig: Rig, fault: str, lasts_s: float, again_s: float, *, before_s: float, after_s: float, rows: int,
              capacity: int = 100) -> None:
    with Simulator(**{**ANSWERS, "keepalive_s": 0.0, "tokens_per_s": 100, "capacity": capacity}) as simulator:
        file = job(rig, {"router": account(simulator.openrouter, max_in_flight=capacity)}, {"B1": rows}, in_flight=2 * capacity)
        process = rig.start("run", "--plan", file, "--no-export")
        rig.wait(lambda: simulator.summary()["complete"] >= capacity, 60, "a first round of answers")
        begun = time.time()
        time.sleep(before_s)
        out_at = time.time()
        simulator.control(outage={"fault": fault, "for_s": lasts_s})
        time.sleep(lasts_s)
        over_at = time.time()
        time.sleep(after_s)
        now = time.time()
        calls, answers = rate(simulator, begun, out_at, "calls"), rate(simulator, begun, out_at)
        # What was refused at once when it began is no rate of calls yet.
        assert rate(simulator, out_at + 3, over_at, "calls") <= 0.05 * calls
        assert rate(simulator, over_at + again_s, now) >= 0.9 * answers
        assert simulator.summary()["max_in_flight"] <= 1.2 * capacity
        assert rig.query("select count(*) from sample where state = 3") == [(0,)]
        assert process.poll() is None, "the job was too small for its measurement"
        rig.stop()


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("fault", ["503", "429"])
def test_a_short_brown_out_costs_few_calls_and_fails_nothing(rig: Rig, fault: str) -> None:
    brown_out(rig, fault, 20, 15, before_s=10, after_s=25, rows=6_000)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("fault", "again_s"), [("503", 30), ("502", 30), ("429", 45)])
def test_a_brown_out_of_a_minute_is_over_soon_after_its_end(rig: Rig, fault: str, again_s: float) -> None:
    brown_out(rig, fault, 60, again_s, before_s=20, after_s=again_s + 20, rows=16_000)


def halted(rig: Rig) -> str:
    with rig.redis() as client:
        return "".join(str(json.loads(client.get(key)).get("halted", "")) for key in client.keys("*limit:router"))  # type: ignore


@pytest.mark.timeout(240)
def test_a_revoked_key_pauses_its_account_until_the_file_holds_another(rig: Rig) -> None:
    with Simulator(**{**ANSWERS, "keepalive_s": 0.0}) as simulator:
        file = job(rig, {"router": account(simulator.openrouter)}, {"B1": 400}, in_flight=50)
        process = rig.start("run", "--plan", file, "--no-export")
        rig.wait(lambda: simulator.summary()["complete"] >= 60, 60, "answers")
        simulator.control(revoke_keys=True)
        rig.wait(lambda: halted(rig) == "bad_credentials", 30, "the pause")
        rig.wait(lambda: simulator.summary()["in_flight"] == 0, 30, "the last answers")
        asked = simulator.summary()["calls"]
        time.sleep(5)
        assert simulator.summary()["calls"] <= asked + 1
        write_key(rig, "sk-or-test-another-fedcba9876543210")
        assert process.wait(120) == 0, rig.tail()
        with rig.services():
            found = totals(rig)["B1"]
            assert (found["done"], found["failed"]) == (400, 0)
            assert rig.query("select coalesce(max(burnt), 0) from sample") == [(1,)]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_spent_credit_pauses_the_account_and_goes_on_when_there_is_more(rig: Rig) -> None:
    with Simulator(**{**ANSWERS, "keepalive_s": 0.0, "credit_usd": 0.05}) as simulator:
        file = job(rig, {"router": account(simulator.openrouter)}, {"B1": 200}, in_flight=20)
        process = rig.start("run", "--plan", file, "--no-export")
        rig.wait(lambda: halted(rig) == "no_credit", 60, "the pause")
        simulator.control(credit_usd=100)
        assert process.wait(120) == 0, rig.tail()
        with rig.services():
            assert (totals(rig)["B1"]["done"], totals(rig)["B1"]["failed"]) == (200, 0)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_in_flight_budget_slows_down_and_pauses_nothing(rig: Rig) -> None:
    with Simulator(**{**ANSWERS, "keepalive_s": 0.0, "in_flight_usd": 0.02}) as simulator:
        file = job(rig, {"router": account(simulator.openrouter)}, {"B1": 150}, in_flight=60)
        code, out = rig.command("run", "--plan", file, "--no-export", timeout_s=200)
        assert code == 0, out
        with rig.services():
            assert (totals(rig)["B1"]["done"], totals(rig)["B1"]["failed"]) == (150, 0)
            codes = dict(rig.query("select code, count(*) from attempt where action <> 'done' group by 1"))
            assert set(codes) == {"inflight_budget"}
            check_nobody_paid_for_our_faults(rig, simulator)


@pytest.mark.timeout(240)
def test_routing_that_leaves_no_endpoint_closes_the_dataset_with_its_reason(rig: Rig) -> None:
    with Simulator(**{**ANSWERS, "keepalive_s": 0.0}) as simulator:
        file = job(rig, {"router": account(simulator.openrouter)}, {"B1": 500}, in_flight=20, routing={"only": ["nobody"]})
        code, out = rig.command("run", "--plan", file, "--no-export", timeout_s=120)
        assert code == 1, out
        with rig.services():
            found = totals(rig)["B1"]
            assert (found["closed_reason"], found["failed"], found["queued"]) == ("bad_routing", 0, 500)
            assert simulator.summary()["calls"] <= 100
