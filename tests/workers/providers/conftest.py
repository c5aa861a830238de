"""A server of a few lines whose replies a test writes, and a way to connect a provider to it."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from workers.providers import connect
from workers.providers.base import Provider

Reply = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Scripted:
    """url, and what was asked: requests as (path, headers, JSON body)."""

    url: str = ""
    requests: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    reply: Reply | None = None
    in_flight: int = 0
    most_in_flight: int = 0
    arrived: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))     # one more for each request
    left: asyncio.Event = field(default_factory=asyncio.Event)      # a client went away before its reply ended

    def json(self, document: Any, status: int = 200, **headers: str) -> None:
        async def reply(_: web.Request) -> web.StreamResponse:
            return web.json_response(document, status=status, headers=headers)
        self.reply = reply

    def raw(self, body: bytes, status: int = 200, **headers: str) -> None:
        async def reply(_: web.Request) -> web.StreamResponse:
            return web.Response(body=body, status=status, headers={k.replace("_", "-"): v for k, v in headers.items()})
        self.reply = reply

    def events(self, *events: bytes, pause_s: float = 0.0, then_s: float = 0.0) -> None:
        async def reply(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            for event in events:
                await response.write(event + b"\n\n")
                await asyncio.sleep(pause_s)
            await asyncio.sleep(then_s)
            return response
        self.reply = reply

    async def handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.json() if request.can_read_body else None
        self.requests.append((request.path_qs, {k.lower(): v for k, v in request.headers.items()}, body))
        self.arrived.release()
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            assert self.reply is not None
            return await self.reply(request)
        except (asyncio.CancelledError, ConnectionError):
            self.left.set()
            raise
        finally:
            self.in_flight -= 1


@pytest.fixture
async def scripted() -> AsyncIterator[Scripted]:
    async with serving() as server:
        yield server


@asynccontextmanager
async def serving() -> AsyncIterator[Scripted]:
    server = Scripted()
    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4_096)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


Connect = Callable[..., Awaitable[Any]]


@pytest.fixture
async def provider_of(scripted: Scripted) -> AsyncIterator[Connect]:
    opened: list[Provider] = []

    async def connected(kind: str = "openrouter", key: Callable[[], str | None] = lambda: None, connections: int = 8) -> Provider:
        opened.append(await connect(kind, scripted.url, key, connections))
        return opened[-1]

    yield connected
    for provider in opened:
        await provider.aclose()
