"""Short answers that hit their limit, on engines that take ids: the long lane goes on where they stopped."""

from typing import Any

import pytest

from ops.bench.rig import Rig
from ops.simulator.process import Simulator
from tests.flows.job import check_counters, job, totals

SHORT = 200
# Uniform up to 271: three in ten are longer than 200.
ANSWERS: dict[str, Any] = {"lengths": "uniform", "min_length": 50, "max_length": 265, "tokens_per_s": 200, "reasoning_share": 0.0,
                           "profile": "smollm2"}


def promoted(rig: Rig, kind: str, rows: int, in_flight: int) -> None:
    with Simulator(**ANSWERS) as simulator:
        account = {"kind": kind, "base_url": getattr(simulator, kind)}
        file = job(rig, {"engine": account}, {"B1": rows}, in_flight=in_flight, long=in_flight, max_tokens=SHORT, promote=True)
        code, out = rig.command("run", "--plan", file, "--no-export", timeout_s=280)
        assert code == 0, out
        with rig.services():
            found = totals(rig)["B1"]
            assert (found["done"], found["failed"]) == (rows, 0)
            assert found["grades"] == {"engine": rows}
            cut = rig.query("select count(*), sum(completion_tokens) from attempt where action = 'promote'")[0]
            assert 0.2 * rows <= cut[0] <= 0.4 * rows
            assert found["saved_tokens"] == cut[1] == SHORT * cut[0]
            assert found["waste"]["truncated"]["tokens"] == 0
            # Nothing was generated twice: what was billed is what is stored.
            stored = found["stored_tokens"]
            assert rig.query("select sum(completion_tokens)::int from attempt") == [(stored,)]
            assert simulator.summary()["tokens_billed"] == stored
            check_counters(rig)
            code, shown = rig.command("status")
            assert code == 0
            assert "saved" in shown


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["sglang", pytest.param("llamacpp", marks=pytest.mark.slow)])
def test_promoted_answers_go_on_from_their_ids_and_nothing_is_generated_twice(rig: Rig, kind: str) -> None:
    promoted(rig, kind, 200, 50)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["sglang", "vllm"])
def test_2000_samples_of_which_three_in_ten_hit_the_limit(rig: Rig, kind: str) -> None:
    promoted(rig, kind, 2_000, 200)
