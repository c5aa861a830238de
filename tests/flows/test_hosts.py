"""Whom a dataset is served by: hosts it does not admit, hosts that drift or break, and a model that nobody serves."""

from typing import Any

import pytest

from ops.bench.rig import Rig
from ops.simulator.process import Simulator
from tests.flows.job import account, check_counters, job, totals

ANSWERS: dict[str, Any] = {"lengths": "uniform", "min_length": 50, "max_length": 300, "tokens_per_s": 200, "reasoning_share": 0.0,
                           "profile": "smollm2", "keepalive_s": 0.0}
ROWS = 800
# As the simulator lists them: DeepInfra serves at fp4.
SERVED = {"Moonshot AI": "int4", "Fireworks": "fp8", "Novita": "fp8", "Parasail": "int4"}
DRIFTS, BREAKS = "Novita", "Parasail"


@pytest.mark.timeout(400)
def test_hosts_that_drift_break_or_serve_at_fp4_are_left_out_and_nothing_fails(rig: Rig) -> None:
    with Simulator(**ANSWERS) as simulator:
        simulator.control(host_faults={DRIFTS: {"other_template": 0.6}, BREAKS: {"choice_error": 1.0}})
        file = job(rig, {"router": account(simulator.openrouter)}, {"B1": ROWS}, in_flight=40,
                   routing={"quantizations": ["int4", "fp8"]})
        process = rig.start("run", "--plan", file, "--no-export")

        def excluded() -> dict[str, str]:
            return dict(rig.query("select e.key, e.value from dataset, jsonb_each_text(settings -> 'excluded') e"))
        rig.wait(lambda: len(excluded()) == 2, 90, "both hosts left out")
        [(told_at,)] = rig.query("select clock_timestamp() + interval '5 s'")
        assert excluded()[DRIFTS].startswith("counts that do not match")
        assert excluded()[BREAKS].startswith("calls that fail")
        assert process.wait(200) == 0, rig.tail()
        with rig.services():
            found = totals(rig)["B1"]
            assert (found["done"], found["failed"], found["queued"]) == (ROWS, 0, 0)
            later = rig.query("select provider, count(*) from attempt where started_at > %s group by 1", told_at)
            assert sum(n for _, n in later) >= 100, "the job was too small for its measurement"
            assert {name for name, _ in later} == SERVED.keys() - {DRIFTS, BREAKS}
            assert dict(rig.query("select distinct provider, quantization from completion")) == {
                name: precision for name, precision in SERVED.items() if name != BREAKS}
            check_counters(rig)
            code, out = rig.command("status")
            assert code == 0, out
            assert f"{BREAKS} left out (calls that fail" in " ".join(out.split())
        assert {call["provider"] for call in simulator.ledger()} == SERVED.keys()


@pytest.mark.timeout(400)
def test_an_unknown_model_closes_the_dataset_with_its_reason(rig: Rig) -> None:
    with Simulator(**ANSWERS, faults={"404_model": 1.0}) as simulator:
        file = job(rig, {"router": account(simulator.openrouter)}, {"B1": 300}, in_flight=20)
        code, out = rig.command("run", "--plan", file, "--no-export", timeout_s=120)
        assert code == 1, out
        with rig.services():
            found = totals(rig)["B1"]
            assert (found["closed_reason"], found["failed"], found["queued"]) == ("unknown_model", 0, 300)
            assert simulator.summary()["calls"] <= 60
            assert rig.query("select coalesce(max(burnt), 0) from sample") == [(0,)]
