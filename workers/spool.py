"""Paid answers that wait for the database: a bounded, fsynced file per worker, replayed by whoever comes after.

Format: records of length u32, crc32 u32, msgpack of a Settlement. A torn last record is the unfinished write of a killed
process: its answer was never acknowledged to anybody, and its sample will be rescued.
"""

import asyncio
import fcntl
import json
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import structlog

from models.errors import StoreError
from models.store.settlements import Settlement

log = structlog.get_logger()
MAX_BYTES = 512 * 1024 * 1024
_HEAD = struct.Struct("<II")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Settlement)


class Spool:
    """One worker's spool file. Bounded: when it is full, answers stay in memory, and nothing more is asked meanwhile."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.path = folder, folder / f"{name}.spool"
        self._file = locked(self.path)
        self._kept: set[tuple[int, int]] = set()
        self._writing = asyncio.Lock()

    @property
    def waiting(self) -> int:
        return len(self._kept)

    async def keep(self, settlements: Sequence[Settlement]) -> None:
        """Write those not kept yet and fsync, off the loop."""
        async with self._writing:
            new = [s for s in settlements if (s.id, s.fence) not in self._kept]
            data = b"".join(map(_record, new))
            if not data:
                return
            size = os.fstat(self._file).st_size
            if size + len(data) > MAX_BYTES:
                log.error("spool_full", path=str(self.path))
                return
            keys = {(s.id, s.fence) for s in new}
            self._kept |= keys              # before the write, so that `settled` does not empty the file under it
            try:
                await asyncio.to_thread(_append, self._file, data)
            except OSError as error:  # disk full: they stay in memory, which the limit of requests in flight bounds
                self._kept -= keys
                os.ftruncate(self._file, min(size, os.fstat(self._file).st_size))   # half a record would hide the next
                log.error("spool_failed", cause=error.strerror)

    def settled(self, settlements: Sequence[Settlement]) -> None:
        """They are in the database; the file is emptied once nothing waits in it."""
        if not self._kept:
            return
        self._kept.difference_update((s.id, s.fence) for s in settlements)
        if not self._kept:
            os.ftruncate(self._file, 0)

    def quarantine(self, settlement: Settlement) -> None:
        """Keep an answer that the database refuses, for a person to look at."""
        path = self.folder / f"refused-{settlement.id}-{settlement.fence}.json"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "w", encoding="ascii") as file:
            json.dump(msgspec.to_builtins(settlement), file)    # escapes whatever it is that was refused; blobs as base64

    def close(self) -> None:
        empty = os.fstat(self._file).st_size == 0
        os.close(self._file)
        if empty:
            self.path.unlink(missing_ok=True)


def locked(path: Path) -> int:
    """A new file for as long as this process lives. It has its name only once it is locked: who looks for files of the
    dead must not find it before."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_suffix(".new")
    file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    new.rename(path)
    return file


def _append(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view):]
    os.fsync(file)


def _record(settlement: Settlement) -> bytes:
    try:
        body = _encoder.encode(settlement)
    except UnicodeEncodeError:      # half of a surrogate pair in a label; the ledger keeps it aside when its turn comes
        log.error("answer_not_spooled", sample=settlement.id)
        return b""
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _read(data: bytes) -> Iterator[Settlement]:
    at = 0
    while at + _HEAD.size <= len(data):
        length, crc = _HEAD.unpack_from(data, at)
        body = data[at + _HEAD.size:at + _HEAD.size + length]
        if not length or len(body) < length or zlib.crc32(body) != crc:
            return
        yield _decoder.decode(body)
        at += _HEAD.size + length


def orphaned(folder: Path) -> Iterator[tuple[Path, list[Settlement]]]:
    """Spools whose worker is gone, with what they hold. The caller settles them and then removes the file."""
    for path in sorted(folder.glob("*.spool")) if folder.is_dir() else ():
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue  # its worker lives
            try:
                yield path, list(_read(file.read()))
            except msgspec.DecodeError as error:
                raise StoreError(cause=f"the spool {path} holds a record of another version: {error}") from error
