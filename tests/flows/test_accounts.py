"""A dataset on several accounts: in order, or by weight."""

import json
import signal
from typing import Any

import pytest

from ops.bench.rig import Rig
from ops.simulator.process import Simulator
from tests.flows.job import account, check_counters, job, totals

ANSWERS: dict[str, Any] = {"lengths": "uniform", "min_length": 50, "max_length": 400, "tokens_per_s": 200, "reasoning_share": 0.0,
                           "profile": "smollm2", "keepalive_s": 0.0}


def by_account(rig: Rig) -> dict[str, int]:
    return dict(rig.query("select account, count(*) from attempt where action = 'done' group by 1"))


@pytest.mark.timeout(240)
def test_the_second_account_takes_what_the_first_has_no_room_for(rig: Rig) -> None:
    with Simulator(**ANSWERS) as first, Simulator(**ANSWERS) as second:
        accounts = {"own": account(first.openrouter, max_in_flight=10), "router": account(second.openrouter)}
        file = job(rig, accounts, {"B1": 300}, in_flight=40, account=["own", "router"])
        code, out = rig.command("run", "--plan", file, "--no-export", timeout_s=200)
        assert code == 0, out
        assert first.summary()["max_in_flight"] <= 10
        assert 15 <= second.summary()["max_in_flight"] <= 40
        with rig.services():
            assert totals(rig)["B1"]["done"] == 300
            assert by_account(rig) == {"own": first.summary()["complete"], "router": second.summary()["complete"]}
            check_counters(rig)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_accounts_with_weights_share_by_them_and_one_that_is_shut_keeps_nothing_back(rig: Rig) -> None:
    with Simulator(**ANSWERS) as first, Simulator(**ANSWERS) as second, Simulator(**ANSWERS, faults={"401": 1.0}) as shut:
        accounts = {"a": account(first.openrouter), "b": account(second.openrouter), "c": account(shut.openrouter)}
        file = job(rig, accounts, {"B1": 400}, in_flight=40, account={"a": 3.0, "b": 1.0, "c": 0.5})
        code, out = rig.command("run", "--plan", file, "--no-export", timeout_s=200)
        assert code == 0, out
        with rig.services():
            assert totals(rig)["B1"]["done"] == 400
            done = by_account(rig)
            assert 0.65 <= done["a"] / 400 <= 0.85
            assert done.keys() == {"a", "b"}
            check_counters(rig)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_limit_set_by_a_person_holds_at_once_and_until_it_is_given_back(rig: Rig) -> None:
    with Simulator(**ANSWERS) as simulator:
        file = job(rig, {"router": account(simulator.openrouter)}, {"B1": 1_500}, in_flight=50)
        process = rig.start("run", "--plan", file, "--no-export")
        rig.wait(lambda: simulator.summary()["in_flight"] >= 30, 60, "calls in flight")
        rig.process = None
        code, out = rig.command("limits", "router", "--override", "5")
        assert code == 0, out
        assert "fixed" in out
        rig.wait(lambda: 1 <= simulator.summary()["in_flight"] <= 5, 30, "the person's limit")
        assert rig.command("limits", "nobody", "--override", "5")[0] == 2
        code, out = rig.command("limits", "router", "--override", "0", "--json")
        assert code == 0, out
        assert json.loads(out.splitlines()[-1])["router"]["fixed"] is False
        rig.wait(lambda: simulator.summary()["in_flight"] >= 30, 30, "the account's own limit")
        process.send_signal(signal.SIGINT)
        process.wait(60)


def test_who_serves_a_model_and_whom_the_plan_admits_is_shown(rig: Rig) -> None:
    with Simulator(**ANSWERS) as simulator:
        file = job(rig, {"router": account(simulator.openrouter)}, {"B1": 1}, routing={"quantizations": ["int4", "fp8"]})
        code, out = rig.command("providers", "--plan", file)
        assert code == 0, out
        assert "DeepInfra" in out
        assert "`quantizations`" in " ".join(out.split())
        code, out = rig.command("providers", "nobody/nothing", "--base-url", f"{simulator.url}/nowhere")
        assert code == 2
