"""A wire between clients and a service on the loopback that a test can cut, block, slow down and mend."""

import asyncio
from contextlib import suppress
from urllib.parse import urlsplit


class Proxy:
    """`url` leads through it. `cut`: every connection breaks and new ones are refused, until `mend`.

    `block`: connections stay, new ones open, and nothing passes any more. `delay_s`: before each piece of an answer.
    `lose_answers`: what clients send still arrives, and nothing comes back.
    """

    delay_s = 0.0

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._open, self._swallow, self._losing = True, b"", False
        self._passing = asyncio.Event()
        self._passing.set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = self._target._replace(netloc=f"{self._target.netloc.rsplit(':', 1)[0]}:{port}").geturl()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()
        self._server.close()

    def cut(self) -> None:
        self._open = False
        for writer in self._writers:
            writer.transport.abort()

    def mend(self) -> None:
        self._open, self._swallow, self._losing, self.delay_s = True, b"", False, 0.0
        self._passing.set()

    def block(self) -> None:
        self._passing.clear()

    def lose_answers(self) -> None:
        self._losing = True

    def swallow(self, after: bytes) -> None:
        """From where a client sends these bytes on, what it sends still arrives and what it is answered is lost."""
        self._swallow = after

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._open:
            writer.transport.abort()
            return
        try:
            there_reader, there = await asyncio.open_connection(self._target.hostname, self._target.port)
        except OSError:                 # the service is away
            writer.transport.abort()
            return
        self._writers |= {writer, there}
        lost = asyncio.Event()
        try:
            await asyncio.gather(self._ask(reader, there, lost), self._answer(there_reader, writer, lost))
        finally:
            for end in (writer, there):
                self._writers.discard(end)
                end.transport.abort()

    async def _ask(self, reader: asyncio.StreamReader, there: asyncio.StreamWriter, lost: asyncio.Event) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                await self._passing.wait()
                if self._swallow and self._swallow in data:
                    lost.set()
                there.write(data)
                await there.drain()
        there.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, lost: asyncio.Event) -> None:
        with suppress(OSError):
            while data := await reader.read(65_536):
                await self._passing.wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if not lost.is_set() and not self._losing:
                    writer.write(data)
                    await writer.drain()
        writer.transport.abort()
