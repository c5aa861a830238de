"""Budgets in dollars, what was wasted, and a forecast before the rest is started."""

from typing import Any

import pytest

from ops.bench.rig import Rig
from ops.simulator.process import Simulator
from tests.flows.job import account, check_counters, job, totals

ANSWERS: dict[str, Any] = {"lengths": "uniform", "min_length": 50, "max_length": 400, "tokens_per_s": 200, "reasoning_share": 0.0,
                           "profile": "smollm2", "keepalive_s": 0.0}
PRICE = 3.5     # dollars a million completion tokens that bound what the simulator's dearest host bills, prompts included


@pytest.mark.timeout(240)
@pytest.mark.parametrize("mode", ["strict", pytest.param("forecast", marks=pytest.mark.slow)])
def test_a_budget_in_dollars_is_kept(rig: Rig, mode: str) -> None:
    with Simulator(**ANSWERS) as simulator:
        file = job(rig, {"router": account(simulator.openrouter)}, {"B1": 400}, in_flight=20, money_budget_usd=0.1,
                   budget_mode=mode, usd_per_million_tokens=PRICE)
        code, out = rig.command("run", "--plan", file, "--no-export", timeout_s=200)
        assert code == 0, out
        with rig.services():
            found = totals(rig)["B1"]
            assert found["closed_reason"] == "money"
            assert 0.095 <= found["spent_usd"] <= (0.1 if mode == "strict" else 0.102), found
            assert found["spent_usd"] == pytest.approx(simulator.summary()["cost_usd"], abs=1e-6)
            assert found["reserved_usd"] == 0
            check_counters(rig)


@pytest.mark.timeout(240)
def test_a_budget_of_the_run_is_shared_by_its_datasets(rig: Rig) -> None:
    with Simulator(**ANSWERS) as simulator:
        file = job(rig, {"router": account(simulator.openrouter)}, {"B1": 30, "B2": 200, "B3": 200}, in_flight=20,
                   usd_per_million_tokens=PRICE)
        code, out = rig.command("run", "--plan", file, "--no-export", "--run-money-budget", "0.12", timeout_s=200)
        assert code == 0, out
        with rig.services():
            found = totals(rig)
            assert found["B1"]["done"] == 30      # a third was more than it needed: the others took the rest
            assert [found[n]["closed_reason"] for n in ("B2", "B3")] == ["money", "money"]
            assert 0.114 <= sum(d["spent_usd"] for d in found.values()) <= 0.12
            check_counters(rig)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_reply_without_cost_is_priced_by_what_the_others_cost(rig: Rig) -> None:
    with Simulator(**ANSWERS, faults={"null_cost": 0.5}) as simulator:
        file = job(rig, {"router": account(simulator.openrouter)}, {"B1": 100}, in_flight=20)
        code, out = rig.command("run", "--plan", file, "--no-export", timeout_s=200)
        assert code == 0, out
        with rig.services():
            assert rig.query("select count(*) from attempt where cost_nusd = 0") == [(0,)]
            check_counters(rig)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_dataset_that_pays_for_nothing_useful_is_closed(rig: Rig) -> None:
    with Simulator(**ANSWERS, faults={"other_model": 1.0}) as simulator:
        file = job(rig, {"router": account(simulator.openrouter)}, {"B1": 3_000}, in_flight=20, token_budget=100_000,
                   waste_bound=0.2)
        code, out = rig.command("run", "--plan", file, "--no-export", timeout_s=200)
        assert code == 1, out
        with rig.services():
            found = totals(rig)["B1"]
            assert found["closed_reason"] == "waste"
            assert found["useful_tokens"] == 0
            assert 20_000 <= found["waste"]["rejected"]["tokens"] == found["stored_tokens"] <= 60_000
            code, shown = rig.command("status")
            assert "wasted on rejected" in " ".join(shown.split())


@pytest.mark.timeout(240)
def test_a_forecast_pays_for_nothing_that_the_run_pays_for_again(rig: Rig) -> None:
    with Simulator(**ANSWERS) as simulator:
        file = job(rig, {"router": account(simulator.openrouter)}, {"B1": 200}, in_flight=20)
        code, out = rig.command("forecast", "--plan", file, "-n", "40", timeout_s=120)
        assert code == 0, out
        first = simulator.summary()
        assert first["calls"] == 40
        code, _ = rig.command("run", "--plan", file, "--no-export", timeout_s=200)
        assert code == 0
        whole = simulator.summary()
        assert (whole["calls"], whole["paid_twice"]) == (200, 0)
        assert 0.8 <= 5 * first["cost_usd"] / whole["cost_usd"] <= 1.25
        [row] = [line.split() for line in out.splitlines() if line.startswith("B1 ")][-1:]
        assert row[:4] == ["B1", "40/40", "200", "200"]
