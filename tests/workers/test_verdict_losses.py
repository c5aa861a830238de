"""What is no answer, or lost its end: bodies, faults of the transport, streams. No reply here is a case of the corpus."""

import json

import pytest

from tests.workers.replies import ASK, LAST, TEXT, of, piece, reply, streamed
from workers.providers.base import Exchange, Fault
from workers.providers.reading import interpreted
from workers.providers.stream import gathered
from workers.verdict import Action, judge

# -- bodies that are no answer

@pytest.mark.parametrize(("body", "code", "basis"), [
    (b"", "empty_body", "estimate"), (b"\n \n", "empty_body", "estimate"),
    (b"[]", "bad_schema", "none"), (b"7", "bad_schema", "none"),
    (b"{}", "bad_schema", "none"),
    (b'{"id":"g","usage":null}', "no_choices", "none"), (b'{"choices":[null]}', "bad_schema", "none"),
    (b'{"choices":[{}]}', "no_message", "none"), (b'{"choices":[{"message":"hi","finish_reason":"stop"}]}', "bad_schema", "none"),
    (b'{"choices":' + b"[" * 50_000, "bad_json", "estimate"), (b'{"a":1} trailing', "bad_json", "estimate"),
    (b"\x1f\x8b\x08binary", "bad_json", "estimate"), (b"<html>Just a moment</html>", "not_json", "none"),
])
def test_a_body_that_is_no_answer_is_asked_for_again(body: bytes, code: str, basis: str) -> None:
    verdict = of(body)
    assert (verdict.action, verdict.code, verdict.burns, verdict.billed.basis) == (Action.RETRY, code, True, basis)


@pytest.mark.parametrize("body", [
    b"\xef\xbb\xbf" + json.dumps(reply(content=TEXT)).encode(), b"\r\n \n" + json.dumps(reply(content=TEXT)).encode() + b"\n\n",
    json.dumps(reply(content=TEXT)).encode("utf-16"),
    json.dumps({**reply(content=TEXT), "created": 1}).replace("1}", "9" * 5_000 + "}").encode(),
    json.dumps({**reply(content=TEXT), "x": float("nan")}).encode(), json.dumps({**reply(content=TEXT), "error": None}).encode()])
def test_json_as_the_world_sends_it_is_read(body: bytes) -> None:
    assert of(body).code == "ok"


def test_bytes_that_are_no_text_mark_the_row_and_are_not_bought_again() -> None:
    verdict = of(json.dumps(reply(content="caf#")).encode().replace(b"#", b"\xe9"))
    assert (verdict.action, verdict.code, verdict.trainable) == (Action.DONE, "lossy_text", False)


def test_events_that_nobody_asked_for_are_read_as_a_stream() -> None:
    body = b"data: " + json.dumps(piece("stop", content=TEXT)).encode() + b"\n\ndata: [DONE]\n\n"
    assert of(body, content_type="text/event-stream").code == "usage_missing"


# -- transport and streams

@pytest.mark.parametrize(("fault", "action", "code", "basis", "possibly"), [
    (Fault.REFUSED, Action.RETRY, "connect_failed", "none", False), (Fault.DNS, Action.SNOOZE, "dns_failed", "none", False),
    (Fault.POOL, Action.SNOOZE, "local_pool", "none", False), (Fault.CLOSED, Action.RETRY, "connect_failed", "estimate", False),
    (Fault.RESET, Action.RETRY, "body_lost", "estimate", True), (Fault.CUT, Action.RETRY, "body_lost", "estimate", True),
    (Fault.IDLE, Action.RETRY, "timeout", "estimate", True), (Fault.DEADLINE, Action.RETRY, "timeout", "estimate", True),
    (Fault.ENCODING, Action.RETRY, "bad_encoding", "estimate", True),
    (Fault.TOO_LARGE, Action.RETRY, "body_too_large", "estimate", True),
    (Fault.PROTOCOL, Action.RETRY, "protocol_error", "estimate", False),
    (Fault.KEY, Action.SNOOZE, "bad_credentials", "none", False),
    (Fault.CANCELLED, Action.SNOOZE, "cancelled", "estimate", False)])
def test_each_fault_of_the_transport_has_its_verdict(
    fault: Fault, action: Action, code: str, basis: str, possibly: bool,
) -> None:
    verdict = judge(ASK, Exchange(fault=fault))
    assert (verdict.action, verdict.code, verdict.billed.basis, verdict.possibly_paid) == (action, code, basis, possibly)


@pytest.mark.parametrize("status", [401, 429, 503])
def test_a_refusal_whose_body_was_lost_is_still_that_refusal(status: int) -> None:
    assert judge(ASK, Exchange(status=status, fault=Fault.RESET)).burns is (status == 503)


def test_a_stream_that_said_how_it_ended_needs_no_done() -> None:
    verdict = streamed(piece(content=TEXT), piece("stop"), LAST, fault=Fault.RESET)
    assert (verdict.action, verdict.code) == (Action.DONE, "ok")


def test_a_stream_without_its_usage_is_estimated() -> None:
    verdict = streamed(piece(content=TEXT), piece("stop"))
    assert (verdict.action, verdict.code, verdict.billed.basis) == (Action.DONE, "usage_missing", "estimate")


@pytest.mark.parametrize("fault", [None, Fault.RESET, Fault.CUT])
def test_a_stream_that_breaks_off_is_booked_by_what_it_said(fault: Fault | None) -> None:
    verdict = streamed(piece(content=TEXT), fault=fault)
    assert (verdict.action, verdict.code, verdict.possibly_paid) == (Action.RETRY, "stream_truncated", True)
    assert 10 <= verdict.billed.completion_tokens <= 30


def test_a_stream_of_comments_alone_is_no_answer() -> None:
    assert streamed(b": OPENROUTER PROCESSING", b": OPENROUTER PROCESSING").action is Action.RETRY


def test_an_error_in_mid_stream_is_judged_as_that_error() -> None:
    verdict = streamed(piece(content="The sea"), {**piece("error", content=""), "error": {"code": 502, "message": "gone"}})
    assert (verdict.code, verdict.billed.basis, verdict.billed.completion_tokens) == ("provider_error", "usage", 0)
    uninsured = streamed(piece(content="The sea is wide"), {"error": {"code": 502, "message": "gone"}})
    assert (uninsured.code, uninsured.billed.basis) == ("provider_error", "estimate")


def test_a_half_event_at_the_end_is_a_cut_stream_and_one_in_the_middle_is_broken() -> None:
    assert streamed(piece(content=TEXT), b'data: {"choices":[{"del', ends=b"\n\n").code == "bad_json"
    body = b"data: " + json.dumps(piece(content=TEXT)).encode() + b'\n\ndata: {"choices":[{"del'
    exchange = Exchange(status=200, body=body, streamed=True)
    assert judge(ASK, interpreted(exchange, gathered(body), ASK)).code == "stream_truncated"


def test_tool_calls_come_together_from_their_pieces() -> None:
    first = {"index": 0, "id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{\"a\""}}
    second = {"index": 0, "function": {"arguments": ": 1}"}}
    verdict = streamed(piece(tool_calls=[first]), piece("tool_calls", tool_calls=[second]), LAST)
    assert verdict.answer is not None
    assert [(c.id, c.name, c.arguments) for c in verdict.answer.tool_calls] == [("functions.f:0", "f", "{\"a\": 1}")]
