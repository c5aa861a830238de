"""Whatever comes back, a verdict comes out, and it keeps its promises."""

import json
import os
import re
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models import blob
from workers.providers.base import Ask, Exchange, Fault
from workers.providers.reading import interpreted
from workers.providers.stream import Events, Gather, gathered
from workers.verdict import Action, History, Verdict, judge

ASK = Ask("moonshotai/kimi-k2.5", [{"role": "user", "content": "Name a prime."}], 1_000, expected_prompt_tokens=40,
          routing={"ignore": ["fireworks"], "only": ["moonshotai"]})
GOOD: dict[str, Any] = {
    "id": "gen-1", "provider": "Moonshot AI", "model": "moonshotai/kimi-k2.5",
    "choices": [{"index": 0, "finish_reason": "stop", "native_finish_reason": "stop", "message": {
        "role": "assistant", "content": "Eleven.", "reasoning": "Above ten: 11.", "tool_calls": None,
        "reasoning_details": [{"type": "reasoning.text", "text": "Above ten: 11.", "index": 0}]},
        "logprobs": {"content": [{"token": "E", "bytes": [69], "logprob": -1.5, "id": 3}]}}],
    "usage": {"prompt_tokens": 40, "completion_tokens": 12, "total_tokens": 52, "cost": 3.1e-05,
              "completion_tokens_details": {"reasoning_tokens": 7}}}
BAD: dict[str, Any] = {"error": {
    "code": 429, "message": "Provider returned error", "type": "BadRequestError", "availability": {
        "code": "constraint_filtered", "retryable": True, "retry_after": 12},
    "metadata": {"error_type": "rate_limit_exceeded", "provider_name": "X", "limit_source": "openrouter_credits",
                 "headers": {"X-RateLimit-Reset": "1790000000000", "Retry-After": "3"}}}, "user_id": "u"}
HOSTILE = st.sampled_from([
    None, True, False, 0, -1, 10**30, -(10**25), 1.5, float("nan"), float("inf"), -float("inf"), "", " ", "\x00", "\ud83d",
    "�", "9" * 5_000, "soon", "-5", "429", [], {}, [None], [[]], [{}], {"a": 1}, {"text": "x"}, "<|im_end|>", "<think>",
    "</think>", "stop", "length", "error", "content_filter",
    "Wed, 21 Oct 2099 07:28:00 GMT", "\u2028", "a" * 9_000, "1e400", "NaN", [1, -1, 2**40], ["a", 1]])
STATUSES = [200] * 12 + [201, 204, 301, 400, 401, 402, 403, 404, 408, 413, 422, 429, 500, 502, 503, 504, 524, 529]
STATUS = st.sampled_from(STATUSES).flatmap(
    lambda status: st.just(status) if status != 201 else st.one_of(st.integers(100, 999), st.none()))
HEADERS = st.dictionaries(
    st.sampled_from(["content-type", "retry-after", "x-ratelimit-reset", "date", "retry-after-ms", "x-generation-id", "server"]),
    st.one_of(st.sampled_from(["application/json", "text/html", "text/event-stream", "0", "7", "-1", "1e300", "nan", "inf",
                               "soon", "Wed, 21 Oct 2099 07:28:00 GMT", "99999999999999", "4102444800"]), st.text(max_size=30)))
HISTORY = st.builds(
    History, burnt=st.integers(0, 9), possibly_paid=st.integers(0, 9), lane=st.sampled_from(["short", "long"]),
    may_promote=st.booleans(), snoozed=st.integers(0, 10_000), expected_tokens=st.one_of(st.none(), st.integers(1, 10**6)))
FUZZ = settings(max_examples=int(os.environ.get("FUZZ_EXAMPLES", "250")), deadline=None,
                suppress_health_check=[HealthCheck.too_slow])
JUNK = [b"[" * 3_000, b"9" * 5_000, b"\xef\xbb\xbf", b"\r\n\r\n", b"\xff", b"<html>"]


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    return [path, *(p for key, value in inner for p in places(value, (*path, key)))]


def planted(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = dict(document) if isinstance(document, dict) else list(document)
    copy[path[0]] = planted(copy[path[0]], path[1:], value)
    return copy


@st.composite
def documents(draw: st.DrawFn) -> Any:
    document = draw(st.sampled_from([GOOD, BAD, {**GOOD, **BAD}]))
    for _ in range(draw(st.integers(0, 3))):
        document = planted(document, draw(st.sampled_from(places(document))), draw(HOSTILE))
    return document


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    body = json.dumps(draw(documents())).encode()
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(body)))
        junk = draw(st.one_of(st.binary(max_size=6), st.sampled_from(JUNK)))
        body = draw(st.sampled_from([body[:at], body[at:], body[:at] + junk + body[at:], body + body, junk + body]))
    return body


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    parts = [b": OPENROUTER PROCESSING", b"data: [DONE]", b"event: message", b"data:", b"data: {", b"\xff\xfe", b"data: null"]
    for piece in ("Ele", "ven.", "\ud83d", "\ude00", "<think>", None, 7):
        parts.append(b"data: " + json.dumps({"id": "g", "choices": [{"index": 0, "delta": {"content": piece}}]}).encode())
    for finish in ("stop", "length", "error", "abort", 5):
        last = {"choices": [{"delta": {}, "finish_reason": finish}], "usage": GOOD["usage"]}
        parts.append(b"data: " + json.dumps(last).encode())
    parts += [b"data: " + json.dumps(draw(documents())).encode(), b"data: " + json.dumps(BAD).encode()]
    ends = st.sampled_from([b"\n\n"] * 6 + [b"\r\n\r\n", b"\r\r", b"\n", b""])
    said = [part + draw(ends) for part in draw(st.lists(st.sampled_from(parts), max_size=8))]
    return b"".join(said) + draw(st.sampled_from([b"", parts[-6] + b"\n\n", parts[1] + b"\n\n"]))


def promises(verdict: Verdict, history: History) -> None:
    low, high = verdict.wait_s
    assert 0 <= low <= high <= 86_400
    assert re.fullmatch(r"[a-z0-9_]+", verdict.code)
    assert min(verdict.billed.prompt_tokens, verdict.billed.completion_tokens, verdict.billed.cost_usd) >= 0
    assert verdict.billed.basis != "estimate" or verdict.billed.completion_tokens > 0
    if verdict.action is Action.DONE:
        answer = verdict.answer
        assert answer is not None
        said = answer.content.strip() or answer.tool_calls
        assert said or (answer.reasoning or "").strip()
        assert said or not verdict.trainable
        assert not (verdict.truncated and verdict.trainable)
        text = [answer.content, answer.reasoning]
        assert blob.unpack_json(blob.pack_json(text)) == text
    if verdict.action is Action.RETRY:
        assert verdict.burns
        assert history.burnt + 1 < history.max_burnt
        assert not verdict.possibly_paid or history.possibly_paid + 1 < history.max_possibly_paid
    if verdict.action is Action.SNOOZE:
        assert not verdict.burns


@FUZZ
@given(bodies(), STATUS, HEADERS, st.one_of(st.none(), st.sampled_from(Fault)), HISTORY)
def test_no_body_status_header_or_fault_breaks_a_verdict_or_its_promises(
    body: bytes, status: int | None, headers: dict[str, str], fault: Fault | None, history: History,
) -> None:
    exchange = Exchange(status=status, headers=headers, body=body, fault=fault, received_at=1_790_000_000.0, dialect="openrouter")
    promises(judge(ASK, interpreted(exchange, gathered(b""), ASK), history), history)
    promises(judge(ASK, replace(exchange, answer=None, problem=None), history), history)
    assert exchange.body == body


@FUZZ
@given(streams(), st.one_of(st.none(), st.sampled_from(Fault)), HISTORY)
def test_no_stream_breaks_a_verdict_or_its_promises(body: bytes, fault: Fault | None, history: History) -> None:
    exchange = Exchange(status=200, body=body, fault=fault, streamed=True, dialect="openrouter",
                        headers={"content-type": "text/event-stream"})
    promises(judge(ASK, interpreted(exchange, gathered(body), ASK), history), history)


@FUZZ
@given(bodies(), st.integers(1, 7))
def test_a_body_read_twice_says_the_same(body: bytes, cut: int) -> None:
    first, second = (interpreted(Exchange(status=200, body=body), gathered(b""), ASK) for _ in range(2))
    assert judge(ASK, first) == judge(ASK, second) or (first.answer is not None and first.answer.completion_ids is not None)


@FUZZ
@given(streams(), st.lists(st.integers(1, 40), min_size=1, max_size=30))
def test_where_chunks_are_cut_changes_nothing(body: bytes, sizes: list[int]) -> None:
    events, gather, at = Events(), Gather(), 0
    for size in sizes * (len(body) // sum(sizes) + 1):
        for data in events.feed(body[at:at + size]):
            gather.add(data)
        at += size
    for data in events.end():
        gather.add(data, cut=True)
    whole = gathered(body)
    assert (gather.document(), gather.broken, gather.done) == (whole.document(), whole.broken, whole.done) or "NaN" in repr(body)
