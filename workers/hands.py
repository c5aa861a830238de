"""Which samples are in a worker's hands at this moment: being tokenized or judged, not waiting for the network.

A prompt that kills the process can only be one of these few, so that its thousands of neighbours in flight are not
blamed. The list lives in a small mapped file, since it must survive the process; whoever starts next on this machine
reads it, reports the death and blames.
"""

import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from workers.spool import locked

SLOTS = 64
_SLOT = struct.Struct("<q")


class Hands:
    """A mapped file of SLOTS sample ids, 0 for none. Locked while its worker lives."""

    def __init__(self, folder: Path, worker_id: int) -> None:
        self.path = folder / f"{worker_id}.hands"
        self._file = locked(self.path)
        os.ftruncate(self._file, SLOTS * _SLOT.size)
        self._map = mmap.mmap(self._file, SLOTS * _SLOT.size)
        self._free = list(range(SLOTS))

    @contextmanager
    def hold(self, sample_id: int) -> Iterator[None]:
        """Around whatever might kill the process. Thread-safe: list.pop and a mapped write are atomic here."""
        try:
            slot = self._free.pop()
        except IndexError:
            slot = None
        if slot is not None:
            _SLOT.pack_into(self._map, slot * _SLOT.size, sample_id)
        try:
            yield
        finally:
            if slot is not None:
                _SLOT.pack_into(self._map, slot * _SLOT.size, 0)
                self._free.append(slot)

    def rejoin(self, worker_id: int) -> None:
        """What is in hand from now on is held under another name of this worker."""
        self.path = self.path.rename(self.path.with_name(f"{worker_id}.hands"))

    def close(self) -> None:
        self._map.close()
        os.close(self._file)
        self.path.unlink(missing_ok=True)


def left_by_the_dead(folder: Path) -> Iterator[tuple[Path, int, list[int]]]:
    """(file, worker id, samples it had in hand) for each worker of this machine that ended without a word."""
    for path in sorted(folder.glob("*.hands")) if folder.is_dir() else ():
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            data = file.read(SLOTS * _SLOT.size)
            held = {i for (i,) in _SLOT.iter_unpack(data[:len(data) // _SLOT.size * _SLOT.size]) if i}
            yield path, int(path.stem), sorted(held)
