"""The one door to a provider: bytes out, an Exchange back, and foreign exceptions made into a Fault in one place.

httpx over aiohttp, since httpx's own pool rescans every connection at every event and cannot hold 2,000. Redirects are
not followed (the key would go along), proxies and cookies are not used, and every call ends at its own total deadline:
read timeouts alone are defeated by keep-alive bytes.
"""

import asyncio
import json
import ssl
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import cache, lru_cache
from typing import Any

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from models.errors import DraftmillError
from workers.providers import stream
from workers.providers.base import Ask, Exchange, Fault, Limits

MAX_BODY = 64 * 1024 * 1024
MAX_HEAD = 64 * 1024
KEY_FOR_S = 0.5
KEEP_ALIVE_S = 15.0          # shorter than most servers', or a reused connection is found closed with the request in it
AFTER_DONE_S = 1.0           # how long the end of a finished stream is waited for, to keep its connection
OWN_ERRNO = {11, 12, 23, 24, 99, 105}     # out of files, memory, ports or buffers: our side, not theirs

SIDE_LIMITS = Limits(total_s=30.0)

Key = Callable[[], str | None]


class Call:
    """One call in flight: its deadline, which progress and a stop may move, and which of them moved it."""

    def __init__(self, ask: Ask | None, limits: Limits) -> None:
        self.ask = ask
        self.limits = limits
        self.reason = Fault.DEADLINE
        self.sent = False
        now = asyncio.get_running_loop().time()
        self._end = now + limits.total_s
        self.timeout = asyncio.timeout_at(self._end)
        self._set = self._end

    def first_byte(self) -> None:
        if self.limits.first_byte_s:
            self._move(self.limits.first_byte_s, Fault.IDLE)

    def progress(self, idle_s: float) -> None:
        self._move(idle_s, Fault.IDLE)

    def unhurried(self) -> None:
        self._move(self.limits.total_s, Fault.DEADLINE)

    def stop(self) -> None:
        self.reason = Fault.CANCELLED
        if not self.timeout.expired():
            self.timeout.reschedule(asyncio.get_running_loop().time())

    def _move(self, seconds: float, reason: Fault) -> None:
        if self.reason is Fault.CANCELLED:
            return
        wanted = asyncio.get_running_loop().time() + seconds
        ends = wanted >= self._end
        self.reason = Fault.DEADLINE if ends else reason
        wanted = min(wanted, self._end)
        # A timer moved for each of 100,000 events a second would cost more than the events.
        if wanted < self._set or wanted - self._set > seconds / 10 or ends:
            self._set = wanted
            self.timeout.reschedule(wanted)


class Door:
    """One account's connections. The key is read anew all the time and goes into one header and nowhere else."""

    def __init__(self, base_url: str, key: Key, max_connections: int) -> None:
        self.base_url = base_url.rstrip("/")
        self._url = lru_cache(16)(lambda path: httpx.URL(self.base_url + path))
        self._key, self._known_key, self._key_until = key, "", 0.0
        self._max = max_connections
        self._slots = asyncio.Semaphore(max_connections)
        self._live: set[Call] = set()
        context = _tls()
        # A transport alone: a client around it adds redirects, cookies and proxies, none of which are wanted, and CPU.
        self._transport = AiohttpTransport(verify=context, client=lambda: _session(context, max_connections))

    def __repr__(self) -> str:
        return f"Door({self.base_url!r}, {len(self._live)} of {self._max} in flight)"

    async def post(
        self, path: str, body: Mapping[str, Any], ask: Ask, *, streamed: bool = False,
    ) -> tuple[Exchange, stream.Gather]:
        """The exchange as it ended, and what its events said if it was a stream. Never raises for the other side."""
        gather = stream.Gather()
        content = json.dumps(body, separators=(",", ":")).encode()
        return await self._send("POST", path, content, Call(ask, ask.limits), gather if streamed else None), gather

    async def get(self, path: str, limits: Limits = SIDE_LIMITS) -> Exchange:
        return await self._send("GET", path, None, Call(None, limits), None)

    def stop(self, wanted: Callable[[Ask], bool]) -> int:
        calls = [c for c in self._live if c.ask is not None and wanted(c.ask)]
        for call in calls:
            call.stop()
        return len(calls)

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def _send(self, method: str, path: str, content: bytes | None, call: Call, gather: stream.Gather | None) -> Exchange:
        exchange = Exchange(streamed=gather is not None)
        started = time.monotonic()
        with _translated(exchange, call):
            headers = self._headers(gather is not None)
            async with self._slot(call):
                waits = {"connect": call.limits.connect_s, "pool": 2 * call.limits.connect_s}
                request = httpx.Request(method, self._url(path), headers=headers, content=content, extensions={"timeout": waits})
                call.sent = True
                response = await self._transport.handle_async_request(request)
                try:
                    _head(exchange, response, time.monotonic() - started)
                    await _body(exchange, response, call, gather)
                finally:
                    await response.aclose()
        exchange.elapsed_s = time.monotonic() - started
        return exchange

    def _headers(self, streamed: bool) -> dict[str, str]:
        # A compressed stream would hold events back; a compressed body saves two thirds of the bytes.
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity" if streamed else "gzip",
                   "User-Agent": "draftmill"}
        if key := self._key_now():
            headers["Authorization"] = f"Bearer {key}"
        return headers

    def _key_now(self) -> str:
        """Asked for at most once in KEY_FOR_S: a read of its file costs as much as all else about a call's headers."""
        now = time.monotonic()
        if now >= self._key_until:
            key = (self._key() or "").strip()
            if not key.isascii() or not key.isprintable():
                raise _BadKey
            self._known_key, self._key_until = key, now + KEY_FOR_S
        return self._known_key

    @asynccontextmanager
    async def _slot(self, call: Call) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(call.limits.connect_s):
                await self._slots.acquire()
        except TimeoutError:
            raise httpx.PoolTimeout("no free connection") from None
        self._live.add(call)
        try:
            async with call.timeout:
                call.first_byte()
                yield
        finally:
            self._live.discard(call)
            self._slots.release()


class _BadKey(DraftmillError):
    """The key holds characters that no header may hold"""


class _TooLarge(Exception):
    pass


class _BadEncoding(Exception):
    pass


@cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()     # tens of milliseconds, on the event loop: once per process


def _session(context: ssl.SSLContext, max_connections: int) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=max_connections, keepalive_timeout=KEEP_ALIVE_S, ttl_dns_cache=60, ssl=context)
    return aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), timeout=aiohttp.ClientTimeout(total=None),
        max_line_size=MAX_HEAD, max_field_size=MAX_HEAD)


def _head(exchange: Exchange, response: httpx.Response, elapsed_s: float) -> None:
    exchange.status = response.status_code
    exchange.headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in response.headers.raw}
    exchange.received_at = time.time()
    exchange.first_byte_s = elapsed_s


async def _body(exchange: Exchange, response: httpx.Response, call: Call, gather: stream.Gather | None) -> None:
    """Reads to the end into `exchange.body`, also when the end is a fault. Events count as progress, bytes do not."""
    encoding = exchange.headers.get("content-encoding", "identity").strip().lower()
    kind = exchange.headers.get("content-type", "")
    live = gather if encoding == "identity" and "json" not in kind and "html" not in kind else None
    kept, events = bytearray(), stream.Events()
    if live is None:
        call.unhurried()
    try:
        async for data in response.aiter_raw():
            kept += data
            if len(kept) > MAX_BODY:
                raise _TooLarge
            if live is not None:
                _listen(live, events.feed(data), call)
    finally:
        if live is not None:
            for event in events.end():
                live.add(event, cut=True)
        exchange.body = bytes(kept)
    exchange.body = _decoded(exchange.body, encoding)


def _listen(gather: stream.Gather, events: Iterator[bytes], call: Call) -> None:
    seen = gather.events
    for event in events:
        gather.add(event)
    if gather.events > seen:
        call.progress(AFTER_DONE_S if gather.done else call.limits.idle_s)


def _decoded(body: bytes, encoding: str) -> bytes:
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "x-gzip"):
        raise _BadEncoding
    out = bytearray()
    while body:
        member = zlib.decompressobj(wbits=31)
        try:
            out += member.decompress(body, MAX_BODY + 1 - len(out))
        except zlib.error:
            raise _BadEncoding from None
        if len(out) > MAX_BODY:
            raise _TooLarge
        if not member.eof:
            raise _BadEncoding      # cut: a decoder that is not asked gives the shortened text and says nothing
        body = member.unused_data
    return bytes(out)


@contextmanager
def _translated(exchange: Exchange, call: Call) -> Iterator[None]:
    """Foreign exceptions become a fault here and nowhere else. Only the exception's name is kept: its text may quote us."""
    try:
        yield
    except DraftmillError as error:
        exchange.fault, exchange.fault_text = Fault.KEY, type(error).__name__
    except TimeoutError as error:
        exchange.fault, exchange.fault_text = call.reason, type(error).__name__
    except (_TooLarge, _BadEncoding) as error:
        exchange.fault = Fault.TOO_LARGE if isinstance(error, _TooLarge) else Fault.ENCODING
        exchange.fault_text = exchange.fault.value
    except (httpx.HTTPError, httpx.InvalidURL, aiohttp.ClientError, OSError, ValueError, RuntimeError) as error:
        exchange.fault = _fault(error, headed=exchange.status is not None)
        exchange.fault_text = type(_root(error)).__name__


def _root(error: BaseException) -> BaseException:
    """aiohttp's own exception: httpx's names lose what happened (a closed connection becomes ConnectTimeout)."""
    cause = error.__cause__
    return cause if isinstance(error, httpx.HTTPError) and cause is not None else error


def _fault(error: BaseException, headed: bool) -> Fault:
    root = _root(error)
    if isinstance(root, httpx.PoolTimeout | RuntimeError) or getattr(root, "errno", None) in OWN_ERRNO:
        return Fault.POOL
    if isinstance(root, aiohttp.ClientConnectorDNSError):
        return Fault.DNS
    if isinstance(root, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError | httpx.ConnectError):
        return Fault.REFUSED
    if isinstance(root, aiohttp.ClientPayloadError):
        return Fault.RESET if isinstance(root.__cause__, OSError) else Fault.CUT
    if isinstance(root, aiohttp.ClientConnectionError | OSError | httpx.NetworkError):
        return Fault.RESET if headed else Fault.CLOSED
    return Fault.PROTOCOL
