"""HTTP/1.1 for one client connection, as lean as a load test needs: no task, no coroutine, one write a reply."""

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import NamedTuple, Protocol, cast
from urllib.parse import parse_qs, urlsplit

MAX_HEAD = 65_536
MAX_BODY = 64 * 2**20
_PHRASES = {status.value: status.phrase for status in HTTPStatus}


class Request(NamedTuple):
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]          # lower-case names
    body: bytes


class Waiting(Protocol):
    """Whoever answers the request of a connection."""

    def gone(self) -> None:
        """The client hung up before the reply was delivered."""


class Connection(asyncio.Protocol):
    """Requests are handed on one at a time; the next waits until `end` (or `respond`) finished the reply.

    Whoever wants to hear of a client that leaves puts itself into `waiting`.
    """

    __slots__ = ("_among", "_body_at", "_buffer", "_chunked", "_close", "_delivered", "_handle", "_need", "_request", "closed",
                 "transport", "waiting")

    def __init__(self, handle: "Callable[[Connection, Request], None]", among: "set[Connection]") -> None:
        self._handle, self._among = handle, among
        self._buffer = bytearray()
        self._request: Request | None = None
        self.waiting: Waiting | None = None
        self._delivered: Callable[[], None] | None = None
        self._body_at = self._need = 0
        self._chunked = self._close = self.closed = False

    # what asyncio tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._among.add(self)
        self.transport.set_write_buffer_limits(high=0)       # so that resume_writing means: handed to the kernel
        peer = transport.get_extra_info("socket")
        if peer is not None:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._request is None:
            self._next()

    def resume_writing(self) -> None:
        if (delivered := self._delivered) is not None:
            self._delivered = None
            delivered()

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self._among.discard(self)
        waiting, self.waiting, self._delivered = self.waiting, None, None
        if waiting is not None:
            waiting.gone()

    # what the one who answers says

    def respond(self, status: int, body: bytes, headers: Mapping[str, str], delivered: Callable[[], None] | None = None,
                promised: int | None = None) -> None:
        """A whole response. `promised`: announce a longer body than is sent, and close."""
        lines = [f"HTTP/1.1 {status} {_PHRASES.get(status, 'Unknown')}", f"content-length: {promised or len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self.transport.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
        self._close = self._close or promised is not None
        self._deliver(delivered)

    def start(self, status: int, headers: Mapping[str, str]) -> None:
        """The head of a chunked response."""
        lines = [f"HTTP/1.1 {status} {_PHRASES.get(status, 'Unknown')}", "transfer-encoding: chunked"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._chunked = True
        self.transport.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n")

    @property
    def started(self) -> bool:
        return self._chunked

    def chunk(self, data: bytes) -> None:
        if data:               # an empty chunk would be the last
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self, delivered: Callable[[], None] | None = None) -> None:
        self.transport.write(b"0\r\n\r\n")
        self._deliver(delivered)

    def drop(self, reset: bool = False) -> None:
        """Close in the middle of a reply; with `reset` by an RST. The one who answers is not told."""
        self.waiting = None
        peer = self.transport.get_extra_info("socket")
        if reset and peer is not None:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.transport.abort()
        else:
            self.transport.close()

    # inside

    def _deliver(self, delivered: Callable[[], None] | None) -> None:
        def done() -> None:
            self.waiting = None
            if delivered is not None:
                delivered()
            self._finished()

        if self.transport.get_write_buffer_size() == 0:
            done()
        else:
            self._delivered = done

    def _finished(self) -> None:
        self._request, self._chunked = None, False
        if self._close:
            self.transport.close()
        elif self._buffer:
            self._next()

    def _next(self) -> None:
        """Hand on the next whole request of the buffer, if there is one."""
        if self._need == 0 and not self._read_head():
            return
        if len(self._buffer) < self._need:
            return
        head, body = bytes(self._buffer[:self._body_at - 4]), bytes(self._buffer[self._body_at:self._need])
        del self._buffer[:self._need]
        self._need = 0
        self._request = request = _parse(head, body)
        self._close = request.headers.get("connection", "").lower() == "close"
        self._handle(self, request)

    def _read_head(self) -> bool:
        at = self._buffer.find(b"\r\n\r\n")
        if at < 0:
            if len(self._buffer) > MAX_HEAD:
                self._refuse(431)
            return False
        length = _content_length(self._buffer[:at].lower())
        if length is None or length > MAX_BODY:
            self._refuse(411 if length is None else 413)
            return False
        self._body_at, self._need = at + 4, at + 4 + length
        return True

    def _refuse(self, status: int) -> None:
        self._close = True
        self._buffer.clear()
        self.respond(status, b"", {})


def _content_length(head: bytearray) -> int | None:
    """None where the length cannot be known: a chunked request, or garbage."""
    if b"\r\ntransfer-encoding:" in head:
        return None
    at = head.find(b"\r\ncontent-length:")
    if at < 0:
        return 0
    value = head[at + 17:].split(b"\r\n", 1)[0].strip()
    return int(value) if value.isdigit() else None


def _parse(head: bytes, body: bytes) -> Request:
    first, _, rest = head.decode("latin-1").partition("\r\n")
    method, _, target = first.partition(" ")
    url = urlsplit(target.partition(" ")[0])
    pairs = (line.partition(":") for line in rest.split("\r\n"))
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    query = {name: values[-1] for name, values in parse_qs(url.query).items()} if url.query else {}
    return Request(method, url.path, query, headers, body)
