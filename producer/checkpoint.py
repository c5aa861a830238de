"""Where an export stands, kept beside its data while it is written, so that one that was killed can go on.

Everything before the checkpoint is on disk when it is written; what came after it is cut away by whoever goes on.
"""

import json
import os
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from producer.tally import Tally
from producer.vocabulary import Counts

FILE = ".checkpoint"
EVERY_ROWS = 50_000
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """after: the last sample that is in. until: rows stored later stay out. forms: what each form keeps of itself."""

    settings: dict[str, Any]
    after: int
    until: str
    tally: dict[str, Any]
    forms: dict[str, Any]
    counts: dict[str, int]

    def write(self, root: Path) -> None:
        document = {"format": FORMAT, **{f.name: getattr(self, f.name) for f in fields(self)}}
        new = root / f"{FILE}.new"
        with new.open("w", encoding="utf-8") as file:
            json.dump(document, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(root / FILE)

    @classmethod
    def read(cls, root: Path, settings: dict[str, Any]) -> "Checkpoint | None":
        """None where there is none, or one of an export with other settings."""
        try:
            document = json.loads((root / FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        if document.pop("format", None) != FORMAT or document.get("settings") != json.loads(json.dumps(settings)):
            return None
        return cls(**document)


def packed(tally: Tally) -> dict[str, Any]:
    """JSON-ready; keys of counters may be pairs."""
    tally.settle()
    values = {f.name: getattr(tally, f.name) for f in fields(tally) if not f.name.startswith("_")}
    return {name: list(value.items()) if isinstance(value, Counter) else value for name, value in values.items()}


def unpacked(document: dict[str, Any]) -> Tally:
    tally = Tally()
    for name, value in document.items():
        if isinstance(value, list):
            value = Counter({tuple(k) if isinstance(k, list) else k: n for k, n in value})
        setattr(tally, name, value)
    return tally


def sparse(counts: Counts) -> dict[str, int]:
    return {str(i): int(counts[i]) for i in np.flatnonzero(counts)}


def dense(counts: dict[str, int], size: int) -> Counts:
    found: Counts = np.zeros(size, dtype=np.int64)
    for i, n in counts.items():
        found[int(i)] = n
    return found


def cleared(root: Path, known: set[str]) -> None:
    """Remove the files that came after the checkpoint; folders that are left empty too."""
    for folder, _, names in os.walk(root, topdown=False):
        for name in names:
            path = Path(folder, name)
            if str(path.relative_to(root)) not in known and path.name != FILE:
                path.unlink()
        if Path(folder) != root and not any(Path(folder).iterdir()):
            Path(folder).rmdir()
