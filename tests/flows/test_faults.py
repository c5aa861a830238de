"""What goes wrong at a provider, whole runs of it: ledgers agree, nothing is failed for what was not its fault."""

from collections import Counter
from typing import Any

import pytest

from ops.bench.rig import Rig
from ops.simulator.process import Simulator
from tests.flows.job import account, check_counters, job, totals

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
