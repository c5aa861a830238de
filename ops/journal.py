"""`draftmill logs`: the log files of a home as one stream, oldest line first, filtered, and followed while they grow.

Our processes log one JSON object a line; PostgreSQL, Valkey and Flower log text, which is kept as the event.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ops.logs import redacted

LEVELS = ("debug", "info", "warning", "error", "critical")
LOOK_EVERY_S = 0.3
_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?")
_ERROR = re.compile(r"\b(?:ERROR|FATAL|PANIC|CRITICAL)\b")
_WARNING = re.compile(r"\bWARNING\b")
_STANDARD = ("timestamp", "level", "event", "logger", "process")


@dataclass(frozen=True, slots=True)
class Line:
    """at: ISO time, "" where the line has none. said: what else our own processes logged with it."""

    process: str
    at: str
    level: str
    event: str
    said: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> str:
        return json.dumps({"timestamp": self.at, "process": self.process, "level": self.level, "event": self.event, **self.said})

    def as_text(self) -> str:
        said = " ".join(f"{k}={v}" for k, v in self.said.items())
        return f"{self.at[11:19] or '        '} {self.process:12} {self.level:8} {self.event} {said}".rstrip()


def read(process: str, text: str) -> Line:
    """A line as a file has it; nothing that looks like a key or password stays in it."""
    text = redacted(text.rstrip("\n"))
    if text.startswith("{"):
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if isinstance(found, dict) and "event" in found:
            said = {k: v for k, v in found.items() if k not in _STANDARD}
            return Line(process, str(found.get("timestamp", "")), str(found.get("level", "info")), str(found["event"]), said)
    at = _TIME.search(text)
    level = "error" if _ERROR.search(text) else "warning" if _WARNING.search(text) else "info"
    return Line(process, at[0].replace(" ", "T") if at else "", level, text)


@dataclass(frozen=True, slots=True)
class Filter:
    """processes: names, or their beginnings (`short` means short-1, short-2). level: that one and above."""

    processes: Sequence[str] = ()
    level: str = "debug"
    datasets: Sequence[str] = ()

    def takes(self, line: Line) -> bool:
        return (LEVELS.index(line.level) if line.level in LEVELS else 1) >= LEVELS.index(self.level) \
            and (not self.datasets or str(line.said.get("dataset")) in self.datasets)

    def opens(self, process: str) -> bool:
        return not self.processes or any(process == p or process.startswith(f"{p}-") for p in self.processes)


def lines(folder: Path, wanted: Filter, last: int) -> list[Line]:
    """The last so many lines of all files together that the filter takes, in the order of their times."""
    found: list[Line] = []
    for file in _files(folder, wanted):
        older = file.with_suffix(file.suffix + ".1")
        before = ""
        for part in (older, file) if older.exists() else (file,):
            for text in part.read_text(encoding="utf-8", errors="replace").splitlines():
                line = read(file.stem, text)
                before = line.at or before      # a traceback's lines belong to the line before them
                if wanted.takes(line):
                    found.append(line if line.at else Line(line.process, before, line.level, line.event, line.said))
    return sorted(found, key=lambda line: line.at)[-last:] if last else []


def follow(folder: Path, wanted: Filter, stop: Callable[[], bool] = lambda: False) -> Iterator[Line]:
    """Each new whole line from now on, also of files that appear, and after a file was cut back (`process.bound_log`)."""
    at = {file: file.stat().st_size for file in _files(folder, wanted)}
    while not stop():
        for file in _files(folder, wanted):
            size = file.stat().st_size
            if size < at.get(file, 0):
                at[file] = 0
            if size == at.get(file, 0):
                continue
            with file.open("rb") as stream:
                stream.seek(at.get(file, 0))
                data = stream.read()
            whole = data[:data.rfind(b"\n") + 1]
            at[file] = at.get(file, 0) + len(whole)
            for text in whole.decode("utf-8", "replace").splitlines():
                if wanted.takes(line := read(file.stem, text)):
                    yield line
        time.sleep(LOOK_EVERY_S)


def _files(folder: Path, wanted: Filter) -> list[Path]:
    return [file for file in sorted(folder.glob("*.log")) if wanted.opens(file.stem)]
