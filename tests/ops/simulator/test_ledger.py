import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ops.simulator.answers import digest
from ops.simulator.ledger import Ledger, Record

Start = Callable[..., Any]
NO_CANCEL, CANCEL = {"only": ["parasail"]}, {"only": ["novita"]}


def record(**changes: object) -> Record:
    plain = Record(1, 7, "", 1, 0.0, 1.0, "openrouter", False, 100, 200, "", 10, 20, 0.5, billed=True, finished=True,
                   complete=True, hung_up=False, provider="Novita", generation_id="gen-1")
    return plain._replace(**changes)


def test_every_call_stands_in_the_ledger_with_what_it_was_billed(start: Start) -> None:
    client = start()
    replies = [client.ask(f"p{i % 3}", metadata={"sample": f"s{i}"}).json() for i in range(5)]
    rows = client.simulator.ledger()
    assert [r["seq"] for r in rows] == [1, 2, 3, 4, 5]
    assert [r["call"] for r in rows] == [1, 1, 1, 2, 2]
    assert [r["sample"] for r in rows] == [f"s{i}" for i in range(5)]
    for row, reply in zip(rows, replies, strict=True):
        assert row["generation_id"] == reply["id"]
        assert row["provider"] == reply["provider"]
        assert row["completion_tokens"] == reply["usage"]["completion_tokens"]
        assert row["cost"] == reply["usage"]["cost"]
        assert row["billed"]
        assert row["finished"]
        assert row["complete"]
        assert row["started"] <= row["ended"]
    assert rows[0]["prompt"] == digest([{"role": "user", "content": "p0"}]).hex()
    summary = client.simulator.summary()
    assert (summary["prompts"], summary["complete_twice"], summary["paid_twice"], summary["paid_after_complete"]) == (3, 2, 2, 2)
    assert summary["tokens_billed"] == sum(r["usage"]["completion_tokens"] for r in replies)
    assert summary["cost_usd"] == pytest.approx(sum(r["usage"]["cost"] for r in replies))


def test_a_prompt_continued_at_another_size_is_not_paid_twice_at_one_size(start: Start) -> None:
    client = start()
    client.ask("grow", max_tokens=10)
    client.ask("grow", max_tokens=1_000)
    summary = client.simulator.summary()
    assert (summary["paid_twice"], summary["paid_twice_same_size"], summary["paid_after_complete"]) == (1, 0, 0)


@pytest.mark.parametrize(("fields", "share"), [
    ({"provider": NO_CANCEL}, "all"), ({"provider": CANCEL}, "all"),
    ({"provider": NO_CANCEL, "stream": True}, "all"), ({"provider": CANCEL, "stream": True}, "some")])
def test_who_hangs_up_pays_for_everything_unless_a_stream_can_be_cancelled(
        start: Start, fields: dict[str, object], share: str) -> None:
    client = start(lengths="fixed", max_length=500, latency_min_s=1.5, latency_max_s=1.51, first_token_s=0.0, flush_s=0.05)
    hang_up = client.leave("bye", **fields)
    client.eventually(lambda: client.simulator.summary()["running"] == 1)
    time.sleep(0.2)
    hang_up()
    client.eventually(lambda: client.simulator.summary()["calls"] == 1)
    row = client.simulator.ledger()[0]
    assert row["billed"]
    assert row["hung_up"]
    assert not row["finished"]
    assert (row["completion_tokens"] == 500) == (share == "all")
    assert row["completion_tokens"] > 0
    assert client.simulator.summary()["running"] == (share == "all")
    client.eventually(lambda: client.simulator.summary()["running"] == 0)
    assert client.get(f"/api/v1/generation?id={row['generation_id']}").json()["data"]["native_tokens_completion"] > 0


def test_an_engine_stops_when_its_client_leaves(start: Start) -> None:
    client = start(lengths="fixed", max_length=500, latency_min_s=600, latency_max_s=601)
    body = {"input_ids": list(range(2_000, 2_020)), "sampling_params": {"max_new_tokens": 400}}
    with pytest.raises(Exception, match="timed out"):
        client._http.post(client.simulator.url + "/generate", json=body, timeout=0.3)
    client.eventually(lambda: client.simulator.summary()["calls"] == 1)
    assert client.simulator.summary()["running"] == 0
    assert client.simulator.ledger()[0]["completion_tokens"] < 400


def test_long_waits_are_bridged_by_blank_lines_before_the_json(start: Start) -> None:
    client = start(latency_min_s=0.3, latency_max_s=0.31, keepalive_s=0.1)
    reply = client.ask("slow")
    assert reply.content.startswith(b"\n")
    assert reply.headers["x-generation-id"] == reply.json()["id"]
    lost = client.simulator.control(faults={"504": 1.0}) and client.ask("slow and bad")
    assert lost.status_code == 200
    assert lost.json()["error"]["code"] == 504


def test_a_reset_forgets_and_numbers_go_on(start: Start) -> None:
    client = start()
    client.ask("p")
    client.simulator.reset()
    assert client.simulator.ledger() == []
    assert client.simulator.summary()["prompts"] == 0
    client.ask("p")
    assert [(r["seq"], r["call"]) for r in client.simulator.ledger()] == [(2, 1)]


def test_the_file_holds_every_call_although_the_simulator_is_killed(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    client = start(ledger=file)
    for i in range(3):
        client.ask(f"p{i}")
    rows = client.simulator.ledger()
    os.kill(client.simulator.pid, signal.SIGKILL)
    assert [json.loads(line) for line in file.read_text().splitlines()] == rows


def test_a_stopped_simulator_books_what_was_under_way(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    client = start(ledger=file, latency_min_s=600, latency_max_s=601)
    hang_up = client.leave("never")
    client.eventually(lambda: client.simulator.summary()["running"] == 1)
    client.simulator.stop()
    hang_up()
    row = json.loads(file.read_text())
    assert row["billed"]
    assert not row["finished"]


def test_memory_is_bounded_and_counts_are_not() -> None:
    ledger = Ledger(limit=2)
    for i in range(5):
        ledger.arrive(7, 100.0 + i)
        ledger.book(record(seq=i + 1, ended=100.5 + i))
    assert len(list(ledger.lines())) == 2
    assert ledger.summary()["calls"] == 5
    assert ledger.summary()["dropped"] == 3
    assert ledger.summary()["tokens_billed"] == 100


def test_the_series_counts_calls_and_failures_by_second() -> None:
    ledger = Ledger(limit=10)
    for _ in range(3):
        ledger.arrive(7, 100.2)
    for status in (200, 429, 429):
        ledger.book(record(status=status, complete=status == 200, ended=101.2))
    assert ledger.series() == [{"second": 100, "calls": 3, "complete": 0, "failed": 0, "in_flight": 3},
                               {"second": 101, "calls": 0, "complete": 1, "failed": 2, "in_flight": 2}]
