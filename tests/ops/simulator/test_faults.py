import json
import time
from collections import Counter
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
import pytest

from models.errors import SettingsError
from ops.simulator.behaviour import Behaviour
from ops.simulator.faults import KINDS, SERVED, Ending, draw, mix

REPLIES = [name for name, kind in KINDS.items() if kind.ending is Ending.REPLY]
BROKEN = ["closed", "reset", "short_body", "cut"]


@pytest.fixture(scope="module")
def faulty(client: Any) -> Any:
    """The file's simulator, whose faults each test sets for itself."""
    return client


def under(client: Any, kind: str, **fields: object) -> httpx.Response:
    client.simulator.control(faults={kind: 1.0})
    return client.ask(f"under {kind} {fields}", **fields)


def last(client: Any) -> dict[str, object]:
    return client.simulator.ledger()[-1]


@pytest.mark.parametrize("kind", REPLIES)
def test_a_kind_has_its_status_and_its_bill(faulty: Any, kind: str) -> None:
    reply = under(faulty, kind)
    record = last(faulty)
    assert reply.status_code == record["status"] == KINDS[kind].status
    assert record["fault"] == kind
    assert record["finished"]
    assert record["billed"] == KINDS[kind].billed == (record["completion_tokens"] > 0)
    assert record["complete"] == (kind in SERVED)
    assert reply.headers["x-generation-id"] == record["generation_id"]
    found = faulty.get(f"/api/v1/generation?id={record['generation_id']}")
    assert found.status_code == (200 if KINDS[kind].billed else 404)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", BROKEN)
def test_a_lost_reply_is_a_transport_error_and_billed_if_it_was_generated(faulty: Any, kind: str, stream: bool) -> None:
    with pytest.raises(httpx.TransportError):
        under(faulty, kind, stream=stream)
    faulty.eventually(lambda: last(faulty)["fault"] == kind)
    record = last(faulty)
    assert record["billed"] == KINDS[kind].billed
    assert not record["finished"]
    assert not record["complete"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stalled_call_never_answers_and_is_billed_when_the_client_gives_up(faulty: Any, stream: bool) -> None:
    faulty.simulator.control(faults={"stall": 1.0})
    calls = faulty.simulator.summary()["calls"]
    hang_up = faulty.leave(f"hole {stream}", stream=stream)
    faulty.eventually(lambda: faulty.simulator.summary()["running"] == 0 and faulty.simulator.summary()["in_flight"] == 1)
    assert faulty.simulator.summary()["calls"] == calls
    hang_up()
    faulty.eventually(lambda: faulty.simulator.summary()["calls"] == calls + 1)
    assert last(faulty)["billed"]
    assert last(faulty)["hung_up"]
    assert last(faulty)["fault"] == "stall"


@pytest.mark.parametrize("kind", ["error_body", "choice_error"])
def test_an_error_in_the_middle_of_a_stream_comes_after_text_and_costs_nothing(faulty: Any, kind: str) -> None:
    lines = under(faulty, kind, stream=True).text.split("\n\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert any(c["choices"][0]["delta"].get("reasoning") for c in chunks[:-1])
    assert chunks[-1]["error"]["code"] == 502
    assert chunks[-1]["choices"][0]["finish_reason"] == "error"
    assert not last(faulty)["billed"]


def test_broken_json_does_not_parse_and_a_blank_body_is_blank(faulty: Any) -> None:
    with pytest.raises(json.JSONDecodeError):
        under(faulty, "broken_json").json()
    assert under(faulty, "blank").text.strip() == ""
    assert "<html>" in under(faulty, "html").text


def test_bodies_of_200_that_are_no_answer(faulty: Any) -> None:
    assert "error" in under(faulty, "error_body").json()
    assert under(faulty, "no_choices").json()["choices"] == []
    empty = under(faulty, "empty").json()
    assert empty["choices"][0]["message"]["content"] == ""
    assert empty["usage"]["completion_tokens"] == 0
    partial = under(faulty, "choice_error").json()["choices"][0]
    assert partial["finish_reason"] == "error"
    assert partial["error"]["code"] == 502
    assert "usage" not in under(faulty, "no_usage").json()
    assert under(faulty, "null_cost").json()["usage"]["cost"] is None
    assert under(faulty, "no_finish").json()["choices"][0]["finish_reason"] is None
    assert under(faulty, "other_model").json()["model"] != "moonshotai/kimi-k2.5"


def test_a_429_hints_in_five_places(faulty: Any) -> None:
    now = time.time()
    assert under(faulty, "429").headers.get("retry-after") is None
    assert under(faulty, "429_retry_after").headers["retry-after"] == "1"
    assert abs(parsedate_to_datetime(under(faulty, "429_date").headers["retry-after"]).timestamp() - now) < 20
    assert abs(int(under(faulty, "429_reset").headers["x-ratelimit-reset"]) / 1000 - now) < 20
    assert under(faulty, "429_body").json()["error"]["metadata"]["headers"]["X-RateLimit-Reset"].isdigit()
    assert under(faulty, "429_availability").json()["error"]["availability"]["retry_after"] == 1.0


def test_the_three_402_are_told_apart(faulty: Any) -> None:
    credit, flight, weight = (under(faulty, f"402_{kind}") for kind in ("credit", "in_flight", "weight"))
    assert [r.json()["error"]["metadata"]["limit_source"] for r in (credit, flight, weight)] == [
        "openrouter_credits", "openrouter_in_flight_budget", "openrouter_credits"]
    assert "retry-after" in flight.headers
    assert "retry-after" not in credit.headers
    assert weight.json()["error"]["metadata"]["error_type"] == "weight_exceeds_budget"


def test_faults_depend_on_the_prompt_and_the_call_alone() -> None:
    shares = mix(0.2)
    once = [draw(shares, i.to_bytes(8, "big"), n) for i in range(2_000) for n in (1, 2)]
    assert once == [draw(shares, i.to_bytes(8, "big"), n) for i in range(2_000) for n in (1, 2)]
    seen = Counter(filter(None, once))
    assert 0.17 < seen.total() / 4_000 < 0.23
    assert seen.keys() == shares.keys()


def test_a_prompt_has_no_more_faults_than_allowed(start: Callable[..., Any]) -> None:
    client = start(faults={"500": 1.0}, max_faults=2, refusal_s=0.0)
    assert [client.ask("patience").status_code for _ in range(4)] == [500, 500, 200, 200]


def test_an_unknown_kind_or_too_large_a_share_is_refused() -> None:
    with pytest.raises(SettingsError, match="no fault is called 'gremlin'"):
        Behaviour(faults={"gremlin": 0.1})
    with pytest.raises(SettingsError, match="more than 1"):
        Behaviour(faults={"500": 0.7, "502": 0.7})
