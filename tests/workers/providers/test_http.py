"""The door: deadlines that hold, bytes that are checked, a key that goes nowhere else, two thousand calls at once."""

import asyncio
import gzip
import json
import resource
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web

from models.errors import SettingsError
from workers.providers import connect, http, stream
from workers.providers.base import Ask, Fault, Limits
from workers.verdict import Action, judge

KEY = "sk-or-v1-c4n4ry0000"
ASK = Ask("m/k", [{"role": "user", "content": "Hi."}], 100, limits=Limits(connect_s=2, idle_s=5, total_s=5))
STREAM = replace(ASK, stream=True)
ANSWER = {"id": "gen-1", "provider": "P", "model": "m/k", "choices": [{"index": 0, "finish_reason": "stop", "message": {
    "role": "assistant", "content": "A prime is eleven."}}], "usage": {"prompt_tokens": 5, "completion_tokens": 6, "cost": 0.1}}


def within(ask: Ask, **limits: float) -> Ask:
    return replace(ask, limits=replace(ask.limits, **limits))


def event(finish: str | None = None, **delta: Any) -> bytes:
    return b"data: " + json.dumps({"id": "g", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}).encode()


# -- the key

async def test_the_key_goes_into_one_header_and_is_asked_for_again_and_again(
        scripted: Any, provider_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "KEY_FOR_S", 0.0)
    keys = iter([KEY + "\n", "sk-or-second"])
    provider = await provider_of(key=lambda: next(keys))
    scripted.json(ANSWER)
    await provider.ask(ASK)
    await provider.ask(ASK)
    assert [r[1]["authorization"] for r in scripted.requests] == [f"Bearer {KEY}", "Bearer sk-or-second"]
    assert all(KEY not in json.dumps([path, body]) for path, _, body in scripted.requests)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://[::1"])
async def test_the_key_is_in_no_repr_and_no_fault(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    for kind in ("openrouter", "sglang", "vllm", "llamacpp"):
        provider = await connect(kind, url, lambda: KEY, 2)
        exchange = await provider.ask(ASK)
        await provider.aclose()
        assert exchange.fault is not None
        assert KEY not in repr(provider) + repr(exchange) + repr(judge(ASK, exchange)) + caplog.text


@pytest.mark.parametrize("key", ["two\nlines", "caf\u00e9", "\x00"])
async def test_a_key_that_no_header_may_hold_pauses_the_account(key: str, scripted: Any, provider_of: Any) -> None:
    exchange = await (await provider_of(key=lambda: key)).ask(ASK)
    assert (exchange.fault, scripted.requests, judge(ASK, exchange).halts) == (Fault.KEY, [], True)


async def test_a_key_file_that_is_away_pauses_the_account(scripted: Any, provider_of: Any) -> None:
    def key() -> str:
        raise SettingsError(cause="the key file cannot be read")
    exchange = await (await provider_of(key=key)).ask(ASK)
    assert (exchange.fault, judge(ASK, exchange).code) == (Fault.KEY, "bad_credentials")


async def test_no_redirect_is_followed_with_the_key(scripted: Any, provider_of: Any) -> None:
    scripted.raw(b"", 307, location=scripted.url + "/elsewhere")
    exchange = await (await provider_of(key=lambda: KEY)).ask(ASK)
    assert (exchange.status, len(scripted.requests), judge(ASK, exchange).code) == (307, 1, "bad_endpoint")


async def test_cookies_are_not_kept(scripted: Any, provider_of: Any) -> None:
    provider = await provider_of()
    scripted.json(ANSWER, **{"Set-Cookie": "__cf_bm=abc; Path=/"})
    await provider.ask(ASK)
    await provider.ask(ASK)
    assert "cookie" not in scripted.requests[1][1]


@pytest.mark.parametrize(("kind", "url"), [("openai", "http://x"), ("vllm", "ftp://x"), ("sglang", "")])
async def test_an_unusable_account_is_refused_at_once(kind: str, url: str) -> None:
    with pytest.raises(SettingsError):
        await connect(kind, url, lambda: None, 1)


# -- bytes

@pytest.mark.parametrize("body", [
    gzip.compress(json.dumps(ANSWER).encode()),
    gzip.compress(json.dumps(ANSWER).encode()[:50]) + gzip.compress(json.dumps(ANSWER).encode()[50:])])
async def test_gzip_is_read_to_its_end(body: bytes, scripted: Any, provider_of: Any) -> None:
    scripted.raw(body, content_encoding="gzip", content_type="application/json")
    exchange = await (await provider_of()).ask(ASK)
    assert (exchange.fault, json.loads(exchange.body)) == (None, ANSWER)


@pytest.mark.parametrize(("body", "encoding"), [
    (gzip.compress(json.dumps(ANSWER).encode())[:-20], "gzip"), (gzip.compress(json.dumps(ANSWER).encode())[:-3], "gzip"),
    (json.dumps(ANSWER).encode(), "gzip"), (b"\x0b\x02\x80{}\x03", "br"), (b"x", "zstd"), (b"x", "gzip, gzip")])
async def test_an_encoding_that_does_not_hold_is_a_fault(body: bytes, encoding: str, scripted: Any, provider_of: Any) -> None:
    scripted.raw(body, content_encoding=encoding)
    exchange = await (await provider_of()).ask(ASK)
    assert (exchange.fault, exchange.answer, judge(ASK, exchange).billed.basis) == (Fault.ENCODING, None, "estimate")


@pytest.mark.parametrize("packed", [False, True])
async def test_a_body_past_its_bound_is_let_go(packed: bool, scripted: Any, provider_of: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(http, "MAX_BODY", 100_000)
    body = b" " * 3_000_000
    scripted.raw(gzip.compress(body) if packed else body, **({"content_encoding": "gzip"} if packed else {}))
    exchange = await (await provider_of()).ask(ASK)
    assert exchange.fault is Fault.TOO_LARGE
    assert len(exchange.body) < 300_000


async def test_what_came_is_kept_byte_for_byte(scripted: Any, provider_of: Any) -> None:
    body = b'  {"choices": [], "x": "\\ud83d\\u0000", "n": ' + b"9" * 5_000 + b"}\xff"
    scripted.raw(body)
    assert (await (await provider_of()).ask(ASK)).body == body


async def test_the_generation_id_is_taken_from_the_head_when_the_body_is_lost(scripted: Any, provider_of: Any) -> None:
    scripted.json({**ANSWER, "id": None}, **{"X-Generation-Id": "gen-head"})
    exchange = await (await provider_of()).ask(ASK)
    assert exchange.answer.generation_id == "gen-head"


# -- time

async def test_keep_alive_bytes_extend_no_deadline(scripted: Any, provider_of: Any) -> None:
    async def drip(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.02)
    scripted.reply = drip
    exchange = await (await provider_of()).ask(within(ASK, total_s=0.3, idle_s=0.1, first_byte_s=0.2))
    assert exchange.fault is Fault.DEADLINE
    await asyncio.wait_for(scripted.left.wait(), 5)


async def test_comments_are_no_progress(scripted: Any, provider_of: Any) -> None:
    scripted.events(event(content="A prime"), *[b": OPENROUTER PROCESSING"] * 500, pause_s=0.02)
    exchange = await (await provider_of()).ask(within(STREAM, idle_s=0.2, total_s=30))
    assert (exchange.fault, exchange.answer.content) == (Fault.IDLE, "A prime")
    await asyncio.wait_for(scripted.left.wait(), 5)


async def test_data_is_progress_for_as_long_as_it_comes(scripted: Any, provider_of: Any) -> None:
    scripted.events(*[event(content="x")] * 30, event("stop"), b"data: [DONE]", pause_s=0.02)
    exchange = await (await provider_of()).ask(within(STREAM, idle_s=0.3, total_s=30))
    assert (exchange.fault, exchange.answer.content) == (None, "x" * 30)


async def test_a_head_that_does_not_come_is_not_waited_for(scripted: Any, provider_of: Any) -> None:
    async def never(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        raise AssertionError
    scripted.reply = never
    exchange = await (await provider_of()).ask(within(ASK, first_byte_s=0.2, total_s=30))
    assert (exchange.fault, exchange.status) == (Fault.IDLE, None)


async def test_a_finished_stream_that_is_not_closed_is_finished(scripted: Any, provider_of: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(http, "AFTER_DONE_S", 0.1)
    scripted.events(event("stop", content="Eleven."), b"data: [DONE]", then_s=60)
    exchange = await (await provider_of()).ask(STREAM)
    assert judge(STREAM, exchange).action is Action.DONE


# -- stopping

async def test_a_stopped_call_keeps_what_it_had_and_leaves_the_others_alone(
    scripted: Any, provider_of: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard, add = asyncio.Semaphore(0), stream.Gather.add

    def listened(gather: stream.Gather, data: bytes, cut: bool = False) -> None:
        add(gather, data, cut)
        heard.release()
    monkeypatch.setattr(stream.Gather, "add", listened)
    scripted.events(event(content="A prime"), *[b": waiting"] * 3_000, pause_s=0.02)
    provider = await provider_of()
    mine, other = STREAM, replace(STREAM, model="m/other")
    calls = [asyncio.create_task(provider.ask(a)) for a in (mine, other)]
    await asyncio.wait_for(heard.acquire(), 5)
    await asyncio.wait_for(heard.acquire(), 5)
    assert provider.stop(lambda ask: ask is mine) == 1
    exchange = await calls[0]
    assert (exchange.fault, exchange.answer.content, judge(mine, exchange).burns) == (Fault.CANCELLED, "A prime", False)
    assert not calls[1].done()
    assert provider.stop(lambda _: True) == 1
    await calls[1]


async def test_a_cancelled_task_hangs_up_and_gives_its_slot_back(scripted: Any, provider_of: Any) -> None:
    scripted.events(*[b": waiting"] * 3_000, pause_s=0.02)
    provider = await provider_of(connections=1)
    call = asyncio.create_task(provider.ask(STREAM))
    await asyncio.wait_for(scripted.arrived.acquire(), 5)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.wait_for(scripted.left.wait(), 5)
    scripted.json(ANSWER)
    assert (await provider.ask(ASK)).status == 200


async def test_no_free_connection_is_our_own_fault(scripted: Any, provider_of: Any) -> None:
    scripted.events(*[b": waiting"] * 3_000, pause_s=0.02)
    provider = await provider_of(connections=1)
    call = asyncio.create_task(provider.ask(STREAM))
    await asyncio.wait_for(scripted.arrived.acquire(), 5)
    exchange = await provider.ask(within(ASK, connect_s=0.1))
    assert (exchange.fault, judge(ASK, exchange).burns) == (Fault.POOL, False)
    provider.stop(lambda _: True)
    await call


# -- the network

async def test_nobody_listening_is_refused_and_costs_nothing() -> None:
    provider = await connect("openrouter", "http://127.0.0.1:1", lambda: None, 2)
    exchange = await provider.ask(ASK)
    await provider.aclose()
    assert (exchange.fault, judge(ASK, exchange).billed.basis) == (Fault.REFUSED, "none")


async def test_a_name_that_does_not_resolve_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: Any, **__: Any) -> Any:
        raise socket.gaierror(-2, "Name or service not known")
    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", nothing, raising=False)
    provider = await connect("openrouter", "http://nowhere.invalid", lambda: None, 2)
    exchange = await provider.ask(ASK)
    await provider.aclose()
    assert exchange.fault is Fault.DNS


@pytest.fixture
async def blunt() -> AsyncIterator[tuple[str, list[bytes]]]:
    """A socket that reads a request, sends what the test put into the list, and closes."""
    sent: list[bytes] = []

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"".join(sent))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(client, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", sent
    server.close()


@pytest.mark.parametrize(("sent", "fault"), [
    (b"", Fault.CLOSED), (b"220 mail.example ESMTP\r\n\r\n", Fault.PROTOCOL),
    (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}", Fault.CUT),
    (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n", Fault.CUT),
    (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 200_000 + b"\r\n\r\n", Fault.PROTOCOL), (b"HTTP/1.1 abc\r\n\r\n", Fault.PROTOCOL)])
async def test_broken_http_is_named_for_what_it_is(sent: bytes, fault: Fault, blunt: tuple[str, list[bytes]]) -> None:
    url, script = blunt
    script.append(sent)
    provider = await connect("openrouter", url, lambda: None, 2)
    exchange = await provider.ask(ASK)
    await provider.aclose()
    assert exchange.fault is fault


async def test_one_client_holds_two_thousand_calls(scripted: Any, provider_of: Any) -> None:
    wanted = 2_000
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 3 * wanted:
        pytest.skip(f"only {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 3 * wanted), hard))
    everybody = asyncio.Event()

    async def hold(_: web.Request) -> web.StreamResponse:
        if scripted.in_flight == wanted:
            everybody.set()
        await everybody.wait()
        return web.json_response(ANSWER)
    scripted.reply = hold
    provider = await provider_of(connections=wanted)
    exchanges = await asyncio.gather(*(provider.ask(within(ASK, connect_s=30, total_s=60)) for _ in range(wanted)))
    assert scripted.most_in_flight == wanted
    assert {(e.status, e.fault) for e in exchanges} == {(200, None)}
