"""What was cut short is paid for all the same: its true bill is found after a restart."""

import pytest

from ops.bench.rig import Rig
from ops.simulator.process import Simulator
from tests.flows.job import account, check_counters, job, totals

ROWS = 60


@pytest.mark.timeout(400)
def test_calls_that_a_stop_cut_short_get_their_true_bill_from_the_next_run(rig: Rig) -> None:
    rig.environment["DRAFTMILL_GRACE_S"] = "1"
    with Simulator(lengths="uniform", min_length=200, max_length=400, tokens_per_s=30, reasoning_share=0.0, profile="smollm2",
                   flush_s=0.1) as simulator:
        file = job(rig, {"router": account(simulator.openrouter)}, {"B1": ROWS}, in_flight=30, lanes={"stream": True})
        rig.start("run", "--plan", file, "--no-export")
        rig.wait(lambda: simulator.summary()["in_flight"] >= 25, 90, "calls in flight")
        rig.wait(lambda: simulator.summary()["complete"] >= 1, 60, "an answer")
        rig.stop()
        simulator.control(speed=20)
        code, out = rig.command("run", "--plan", file, "--no-export", timeout_s=150)
        assert code == 0, out
        calls = {c["generation_id"]: c for c in simulator.ledger()}
        with rig.services():
            assert totals(rig)["B1"]["done"] == ROWS
            cut = rig.query("""select generation_id, basis, prompt_tokens, completion_tokens, cost_nusd from attempt
                where code = 'shutdown' and generation_id <> ''""")
            billed = [row for row in cut if calls[row[0]]["billed"]]
            assert len(billed) >= 10
            for name, *booked in billed:
                call = calls[name]
                assert booked == ["usage", call["prompt_tokens"], call["completion_tokens"], round(call["cost"] * 1e9)], call
            assert rig.query("select count(*) from sample where burnt > 1") == [(0,)]
            check_counters(rig)
