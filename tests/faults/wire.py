"""A server that answers a case byte for byte on loopback: cut chunks, resets, stalls, drips, half characters.

Every case has its own path, /c/<id>. Times written into a case are filled in when it is served.
"""

import asyncio
import base64
import re
import socket
import struct
import time
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any

STALL_S = 30.0      # longer than any deadline of the tests; the client hangs up first


def filled(text: str) -> str:
    text = re.sub(r"\{\{epoch_ms:\+(\d+)\}\}", lambda m: str(round((time.time() + int(m[1])) * 1000)), text)
    text = re.sub(r"\{\{epoch_s:\+(\d+)\}\}", lambda m: str(round(time.time() + int(m[1]))), text)
    return re.sub(r"\{\{http_date:\+(\d+)\}\}", lambda m: formatdate(time.time() + int(m[1]), usegmt=True), text)


def payload(part: Mapping[str, Any]) -> bytes:
    for name in ("body_b64", "b64"):
        if name in part:
            return base64.b64decode(part[name])
    return filled(part.get("body") or part.get("text") or "").encode("utf-8", "surrogatepass")


def head(reply: Mapping[str, Any], *more: str) -> bytes:
    lines = [f"HTTP/1.1 {reply.get('status', 200)} Replayed", *more,
             *(f"{name}: {filled(str(value))}" for name, value in reply.get("headers", {}).items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class Wire:
    """`async with Wire(cases) as url`. counts[id]: how many requests a case has seen."""

    def __init__(self, cases: Mapping[str, Mapping[str, Any]]) -> None:
        self._cases = cases
        self.counts: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._client, "127.0.0.1", 0, limit=1 << 24)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass        # the client is gone, or the server is being closed
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its reply; whether the connection stays open."""
        request = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: *(\d+)", request, re.I)
        await reader.readexactly(int(length[1]) if length else 0)
        case = request.split(b" ", 2)[1].decode().split("/")[2]
        turn = self.counts[case] = self.counts.get(case, 0) + 1
        replies = self._cases[case].get("script") or [self._cases[case].get("response", {})]
        reply = replies[min(turn, len(replies)) - 1]
        kind = RAISED.get(reply["raise"].split(".")[-1], "stall_before_headers") if "raise" in reply else reply.get("transport")
        return bool(await REPLIES[kind](reply, writer))


async def _whole(reply: Mapping[str, Any], writer: asyncio.StreamWriter) -> bool:
    if "chunks" in reply:
        await _chunks(reply, writer)
        writer.write(b"0\r\n\r\n")
    else:
        body = payload(reply)
        writer.write(head(reply, *([f"content-length: {len(body)}"] if reply.get("status") != 204 else [])) + body)
    await writer.drain()
    return True


async def _chunks(reply: Mapping[str, Any], writer: asyncio.StreamWriter) -> None:
    writer.write(head(reply, "transfer-encoding: chunked"))
    for chunk in reply.get("chunks", ()):
        data = payload(chunk)
        if data:
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))
        await writer.drain()
        await asyncio.sleep(0.002)      # each chunk its own segment


async def _close(reply: Mapping[str, Any], writer: asyncio.StreamWriter) -> bool:
    return False


async def _stall(reply: Mapping[str, Any], writer: asyncio.StreamWriter) -> bool:
    await asyncio.sleep(STALL_S)
    return False


async def _stall_after_chunks(reply: Mapping[str, Any], writer: asyncio.StreamWriter) -> bool:
    await _chunks(reply, writer)
    return await _stall(reply, writer)


async def _reset(reply: Mapping[str, Any], writer: asyncio.StreamWriter) -> bool:
    writer.write(head(reply, "content-length: 500") + payload(reply)[:400])
    await writer.drain()
    await asyncio.sleep(0.05)
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()
    return False


async def _cut_chunk(reply: Mapping[str, Any], writer: asyncio.StreamWriter) -> bool:
    if "chunks" in reply:
        await _chunks(reply, writer)
        return False
    body = payload(reply)
    writer.write(head(reply, "transfer-encoding: chunked") + b"%x\r\n" % (len(body) + 50) + body)
    await writer.drain()
    return False


async def _short(reply: Mapping[str, Any], writer: asyncio.StreamWriter) -> bool:
    body = payload(reply)
    writer.write(head(reply, f"content-length: {len(body) + 100}") + body)
    await writer.drain()
    return False


async def _drip(reply: Mapping[str, Any], writer: asyncio.StreamWriter) -> bool:
    writer.write(head(reply, "transfer-encoding: chunked"))
    for _ in range(int(STALL_S / 0.1)):
        writer.write(b"1\r\n \r\n")
        await writer.drain()
        await asyncio.sleep(0.1)
    return False


async def _not_http(reply: Mapping[str, Any], writer: asyncio.StreamWriter) -> bool:
    writer.write(b"220 mail.example.org ESMTP\r\n\r\n")
    await writer.drain()
    return False


REPLIES = {None: _whole, "close_before_response": _close, "refuse": _close, "stall_before_headers": _stall,
           "stall_after_chunks": _stall_after_chunks, "reset_after_headers": _reset, "truncate_chunked": _cut_chunk,
           "short_body": _short, "drip_spaces": _drip, "not_http": _not_http}
# What has to happen on the wire for a client to raise this; time-outs and pool faults are stalls.
RAISED = {"ReadError": "reset_after_headers", "WriteError": "close_before_response", "CloseError": "close_before_response",
          "RemoteProtocolError": "close_before_response", "LocalProtocolError": "not_http"}
