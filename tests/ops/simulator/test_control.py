import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

Start = Callable[..., Any]


def test_a_brown_out_refuses_everything_until_its_end(start: Start) -> None:
    client = start(refusal_s=0.0)
    client.simulator.control(outage={"fault": "429", "for_s": 600, "retry_after_s": 7})
    replies = [client.ask(f"p{i}") for i in range(5)]
    assert [r.status_code for r in replies] == [429] * 5
    assert replies[0].headers["retry-after"] == "7"
    client.simulator.control(outage={"fault": "503", "for_s": 0.2})
    assert client.ask("p").status_code == 503
    client.eventually(lambda: client.simulator.control()["outage"] is None)
    assert client.ask("p").status_code == 200


def test_an_outage_may_be_one_that_loses_paid_replies(start: Start) -> None:
    client = start()
    client.simulator.control(outage={"fault": "524"})
    assert client.ask("p").status_code == 524
    assert client.simulator.summary()["lost"] == 1
    client.simulator.control(outage=None)
    assert client.ask("p").status_code == 200


def test_a_black_hole_swallows_new_calls_and_those_under_way(start: Start) -> None:
    client = start(latency_min_s=0.3, latency_max_s=0.31)
    leave = [client.leave("before")]
    client.simulator.control(stall={"for_s": 600})
    leave.append(client.leave("during"))
    client.eventually(lambda: client.simulator.summary()["in_flight"] == 2 and client.simulator.summary()["running"] == 0)
    for hang_up in leave:
        hang_up()
    client.eventually(lambda: client.simulator.summary()["hung_up"] == 2)
    assert client.simulator.summary()["by_fault"] == {"stall": 2}
    client.simulator.control(stall=None)
    assert client.ask("after").status_code == 200


def test_a_revoked_key_is_refused_and_another_is_good(start: Start) -> None:
    client = start(refusal_s=0.0)
    assert client.ask(key="old").status_code == 200
    client.simulator.control(revoke_keys=True)
    assert client.ask(key="old").status_code == client.get("/api/v1/key", key="old").status_code == 401
    assert client.ask(key="new").status_code == 200
    client.simulator.control(revoke_keys=False)
    assert client.ask(key="old").status_code == 200


def test_only_keys_of_the_file_are_good_when_there_is_one(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("sk-good\n")
    client = start(api_keys_file=file, refusal_s=0.0)
    assert client.ask(key="sk-good").status_code == 200
    assert client.ask(key="sk-bad").status_code == 401
    assert "sk-" not in str(client.simulator.ledger()) + str(client.simulator.control())


def test_credit_runs_out_and_is_topped_up(start: Start) -> None:
    client = start(refusal_s=0.0)
    client.simulator.control(credit_usd=1e-9)
    assert client.ask("a").status_code == 200
    refused = client.ask("b")
    assert refused.status_code == 402
    assert refused.json()["error"]["metadata"]["limit_source"] == "openrouter_credits"
    client.simulator.control(credit_usd=1)
    assert client.ask("b").status_code == 200


def test_the_budget_in_flight_refuses_what_is_too_much_at_once_and_what_is_too_much_ever(start: Start) -> None:
    client = start(latency_min_s=0.5, latency_max_s=0.6, refusal_s=0.0, in_flight_usd=0.004)
    hang_up = client.leave("first", max_tokens=200)
    client.eventually(lambda: client.simulator.summary()["running"] == 1)
    client.simulator.control(in_flight_usd=0.0009)
    second = client.ask("second", max_tokens=200)
    assert second.json()["error"]["metadata"]["limit_source"] == "openrouter_in_flight_budget"
    client.simulator.control(in_flight_usd=0.0001)
    assert client.ask("third", max_tokens=200).json()["error"]["metadata"]["error_type"] == "weight_exceeds_budget"
    hang_up()


def test_more_than_the_hidden_capacity_is_refused(start: Start) -> None:
    client = start(capacity=3, latency_min_s=0.4, latency_max_s=0.41, refusal_s=0.0)
    with ThreadPoolExecutor(8) as pool:
        statuses = sorted(r.status_code for r in pool.map(lambda i: client.ask(f"p{i}"), range(8)))
    assert statuses == [200] * 3 + [429] * 5
    assert client.simulator.summary()["max_running"] == 3


def test_capacity_follows_its_schedule(start: Start) -> None:
    client = start(capacity=5)
    client.simulator.control(capacity_schedule=[[0, 800], [0.1, 300], [600, 1_500]])
    client.eventually(lambda: client.simulator.control()["capacity"] == 300)
    assert len(client.simulator.control()["capacity_schedule"]) == 1


def test_an_engine_makes_them_wait_instead(start: Start) -> None:
    client = start(capacity=2, queue=True)
    with ThreadPoolExecutor(8) as pool:
        statuses = {r.status_code for r in pool.map(lambda i: client.ask(f"p{i}", at="sglang"), range(8))}
    assert statuses == {200}
    assert client.simulator.summary()["max_running"] == 2
    assert client.simulator.summary()["max_in_flight"] > 2


def test_who_leaves_the_queue_is_neither_served_nor_billed(start: Start) -> None:
    client = start(capacity=1, queue=True, latency_min_s=0.3, latency_max_s=0.31)
    first, second = client.leave("first"), client.leave("second")
    client.eventually(lambda: client.simulator.summary()["in_flight"] == 2)
    second()
    client.eventually(lambda: client.simulator.summary()["hung_up"] == 1)
    first()
    client.eventually(lambda: client.simulator.summary()["running"] == 0)
    assert [r["billed"] for r in client.simulator.ledger()] == [False, True]
    assert client.ask("third").status_code == 200


def test_tokens_per_minute_are_refused_beyond_their_bucket(start: Start) -> None:
    client = start(tokens_per_minute=60, refusal_s=0.0)
    assert [client.ask(f"p{i}").status_code for i in range(3)] == [200, 429, 429]


def test_speed_and_lengths_can_be_changed(start: Start) -> None:
    client = start(latency_max_s=0.0, latency_min_s=0.0, lengths="fixed", max_length=100, tokens_per_s=1.0)
    client.simulator.control(speed=1_000.0, length_factor=2.5)
    begin = time.monotonic()
    assert client.ask("p").json()["usage"]["completion_tokens"] == 250
    assert time.monotonic() - begin < 60            # at a token a second it would be four minutes


@pytest.mark.parametrize("verbs", [{"magic": 1}, {"speed": 0}, {"outage": {"fault": "gremlin"}}, {"capacity": "many"}])
def test_an_unknown_verb_or_value_is_refused(start: Start, verbs: dict[str, object]) -> None:
    assert start().post("/control", verbs).status_code == 400


def test_one_host_may_fail_or_tell_of_another_prompt_while_the_others_serve(start: Start) -> None:
    client = start()
    client.simulator.control(host_faults={"Novita": {"other_template": 1.0}, "Parasail": {"503": 1.0}})
    told: dict[str, set[int]] = {}
    for i in range(60):
        reply = client.ask(f"p{i:02}", max_tokens=5)
        record = client.simulator.ledger()[-1]
        assert (reply.status_code == 503) == (record["provider"] == "Parasail")
        if reply.status_code == 200:
            told.setdefault(record["provider"], set()).add(reply.json()["usage"]["prompt_tokens"])
    [usual] = told["Fireworks"]
    assert told == {name: {3 * usual if name == "Novita" else usual} for name in told}
    assert len(told) == 4
