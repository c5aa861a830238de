"""A second host: a network namespace behind a cable that can be pulled, and the first host's services on its end of it.

Needs root, iproute2 and util-linux. The first host is where the tests run.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

HERE, THERE = "10.213.77.1", "10.213.77.2"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


def missing() -> str:
    """Why there can be no second host here; "" when there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return "ip or unshare is missing"
    try:
        with Host("dm-probe"):
            return ""
    except (subprocess.SubprocessError, OSError) as error:
        return f"network namespaces are not allowed here ({type(error).__name__})"


class Host:
    """`with Host("host-b") as host:`; the namespace and its cable end with the block."""

    def __init__(self, name: str) -> None:
        self.name, self._cable = name, f"dm{os.getpid() % 100_000}"

    def __enter__(self) -> "Host":
        with suppress(subprocess.CalledProcessError):
            _ip("netns", "del", self.name)
        _ip("netns", "add", self.name)
        try:
            _ip("link", "add", f"{self._cable}a", "type", "veth", "peer", "name", f"{self._cable}b", "netns", self.name)
            _ip("addr", "add", f"{HERE}/30", "dev", f"{self._cable}a")
            _ip("link", "set", f"{self._cable}a", "up")
            _ip("-n", self.name, "addr", "add", f"{THERE}/30", "dev", f"{self._cable}b")
            _ip("-n", self.name, "link", "set", f"{self._cable}b", "up")
            _ip("-n", self.name, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        _ip("netns", "del", self.name)      # the cable goes with its end
        with suppress(subprocess.CalledProcessError):
            _ip("link", "del", f"{self._cable}a")

    def cut(self) -> None:
        """Packets vanish; nobody is told."""
        _ip("-n", self.name, "link", "set", f"{self._cable}b", "down")

    def mend(self) -> None:
        _ip("-n", self.name, "link", "set", f"{self._cable}b", "up")

    def start(self, log: Path, env: Mapping[str, str], *arguments: str) -> subprocess.Popen[bytes]:
        """A draftmill command on that host, which has a name of its own."""
        with log.open("ab") as out:
            return subprocess.Popen(
                ["ip", "netns", "exec", self.name, "unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"', self.name,
                 sys.executable, "-P", "-m", "ops", *arguments],
                env=dict(env), cwd=log.parent, stdin=subprocess.DEVNULL, stdout=out, stderr=out)


@contextmanager
def offered(*ports: int) -> Iterator[None]:
    """These ports of the loopback, also on this host's end of the cable."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    starting = [asyncio.run_coroutine_threadsafe(asyncio.start_server(_relay(port), HERE, port), loop) for port in ports]
    servers = [future.result(20) for future in starting]
    try:
        yield
    finally:
        for server in servers:
            loop.call_soon_threadsafe(server.close)
        asyncio.run_coroutine_threadsafe(_end(), loop).result(20)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(20)
        loop.close()


async def _end() -> None:
    tasks = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _relay(port: int):  # type: ignore[no-untyped-def]
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            writer.transport.abort()
            return
        try:
            await asyncio.gather(_copy(reader, there), _copy(there_reader, writer))
        finally:
            writer.transport.abort()
            there.transport.abort()
    return serve


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()
