"""An index on disk for the length of one command, so that memory stays flat however many prompts there are."""

import sqlite3
import tempfile
from types import TracebackType
from typing import Self

CACHE_KIB = 65_536


class Scratch:
    """A SQLite database in a temporary file, for this process alone. Use as a context manager; leaving it removes the file."""

    def __init__(self, name: str, tables: str) -> None:
        self._file = tempfile.NamedTemporaryFile(prefix=f"draftmill-{name}-")  # noqa: SIM115  (closed with this)
        self._db = sqlite3.connect(self._file.name, isolation_level=None)
        for pragma in ("journal_mode=off", "synchronous=off", "locking_mode=exclusive", f"cache_size=-{CACHE_KIB}"):
            self._db.execute(f"pragma {pragma}")
        self._db.executescript(tables)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._db.close()
        self._file.close()
