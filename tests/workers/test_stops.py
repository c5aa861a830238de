"""How a call is made and how it is ended early: streamed or not, hung up, booked by what had come."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web

from models.plan import LanePlan, Routing
from models.states import Lane
from tests.hand import Hand
from tests.workers.mill import HOSTS, Mill, answers, milling, reply
from tests.workers.providers.conftest import Scripted
from tests.workers.replies import LAST, TEXT, piece
from workers.asking import hang_up
from workers.limiter import Outcome
from workers.providers.stream import Gather

Heard = Callable[..., Awaitable[None]]


@pytest.fixture
async def long_mill(store: Hand, server: Scripted, tmp_path: Path) -> AsyncIterator[Mill]:
    async with milling(store, tmp_path, server.url, lane=Lane.LONG) as one:
        yield one


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    """Waits until a client has read so many events."""
    read, add = asyncio.Semaphore(0), Gather.add

    def told(gather: Gather, data: bytes, cut: bool = False) -> None:
        add(gather, data, cut)
        read.release()
    monkeypatch.setattr(Gather, "add", told)

    async def wait(events: int = 1) -> None:
        async with asyncio.timeout(60):
            for _ in range(events):
                await read.acquire()
    return wait


def stalls(server: Scripted, hosts: Mapping[str, str], *events: bytes) -> None:
    """A stream that says this much and then nothing more."""
    async def begun(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "x-generation-id": "gen-8"})
        await response.prepare(request)
        for event in events:
            await response.write(b"data: " + event + b"\n\n")
        await asyncio.sleep(60)
        return response
    answers(server, begun, hosts)


PART = json.dumps(piece(content=TEXT)).encode()
CANCELS = {"Fireworks": "fireworks/fp8", "DeepInfra": "deepinfra/fp4"}


@pytest.mark.parametrize(("hosts", "only", "stream", "streams"), [
    (CANCELS, None, None, True), (HOSTS, None, None, False), (HOSTS, ["fireworks", "deepinfra"], None, True),
    ({}, None, None, False), (CANCELS, None, False, False), (HOSTS, None, True, True)])
async def test_the_long_lane_streams_where_every_host_that_may_serve_can_be_left(
        server: Scripted, long_mill: Mill, hosts: Mapping[str, str], only: list[str] | None, stream: bool | None,
        streams: bool) -> None:
    answers(server, lambda _: web.json_response(reply(content=TEXT)), hosts)
    lane = LanePlan(max_tokens=400, concurrency=4, stream=stream)
    [sample] = await long_mill.put(["Why?"], routing=Routing(only=only), long=lane)
    await long_mill.run(sample)
    assert server.requests[-1][2]["stream"] is streams


async def test_the_short_lane_does_not_stream_unless_told(server: Scripted, mill: Mill) -> None:
    answers(server, lambda _: web.json_response(reply(content=TEXT)), CANCELS)
    [sample] = await mill.put(["Why?"])
    await mill.run(sample)
    assert server.requests[-1][2]["stream"] is False


async def test_a_stop_hangs_up_and_books_what_had_come_under_its_generation(
        store: Hand, server: Scripted, long_mill: Mill, heard: Heard) -> None:
    stalls(server, CANCELS, PART)
    [sample] = await long_mill.put(["Why?"])
    running = asyncio.create_task(long_mill.run(sample))
    await heard()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with asyncio.timeout(10):
        await server.left.wait()
    [attempt] = await long_mill.attempts()
    assert (attempt.action, attempt.code, attempt.basis, attempt.generation_id) == ("release", "shutdown", "estimate", "gen-8")
    assert 5 <= attempt.completion_tokens <= 30
    assert attempt.bill_at is not None      # the books are asked for what it came to
    assert tuple(await store.one("select state, burnt, possibly_paid from sample")) == (0, 0, 0)
    assert long_mill.limit.outcomes == [Outcome.NONE]
    assert not long_mill.calls
    await store.check_counters()


async def test_a_call_that_cannot_be_left_is_booked_in_full_when_it_is_stopped(store: Hand, server: Scripted, mill: Mill) -> None:
    async def silent(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()
    answers(server, silent)
    [sample] = await mill.put(["Why?"])
    running = asyncio.create_task(mill.run(sample))
    async with asyncio.timeout(20):
        while sum(body is not None for _, _, body in server.requests) < 1:
            await server.arrived.acquire()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    [attempt] = await mill.attempts()
    assert (attempt.action, attempt.basis, attempt.completion_tokens) == ("release", "estimate", 100)


async def test_an_answer_that_was_whole_when_its_connection_was_stopped_is_stored(
        store: Hand, server: Scripted, long_mill: Mill, heard: Heard) -> None:
    stalls(server, CANCELS, PART, json.dumps(piece("stop", content="")).encode(), json.dumps(LAST).encode())
    [sample] = await long_mill.put(["Why?"])
    running = asyncio.create_task(long_mill.run(sample))
    await heard(3)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert tuple(await store.one("select state, reason from sample")) == (2, None)
    await store.check_counters()


async def test_only_streams_whose_bill_ends_are_hung_up_when_a_dataset_may_pay_no_more(
        store: Hand, server: Scripted, long_mill: Mill, heard: Heard) -> None:
    stalls(server, CANCELS, PART)
    [sample] = await long_mill.put(["Why?"])
    running = asyncio.create_task(long_mill.run(sample))
    await heard()
    [call] = long_mill.calls.values()
    assert hang_up([replace(call, cancels=False)]) == 0
    assert hang_up([call]) == 1
    assert await running == ["cancelled"]
    [attempt] = await long_mill.attempts()
    assert (attempt.action, attempt.generation_id) == ("snooze", "gen-8")
    assert tuple(await store.one("select state, burnt from sample")) == (0, 0)
