"""The forms an export can take, each a writer of rows into its own folder."""

import json
from collections import Counter
from pathlib import Path
from typing import Any, Protocol

from producer import token_rows
from producer.dialects import Render, chat, survival
from producer.rows import ExportRow
from producer.selection import Vocabulary
from producer.shards import Shard, Shards

TOKENS, TRL = "tokens", "trl"
TRIED_ROWS = 1_000  # rows per dialect whose rendering is compared with their ids


class Form(Protocol):
    def add(self, row: ExportRow, split: str, covered: int) -> None: ...

    def close(self) -> list[Shard]: ...

    def abort(self) -> None: ...

    def state(self) -> dict[str, Any] | None:
        """What it needs to go on after a kill, JSON-ready; None where it cannot."""

    def restore(self, state: dict[str, Any]) -> None: ...


class Folders:
    """One set of shards per folder, opened when the first row comes."""

    def __init__(self, root: Path, max_rows: int, max_bytes: int) -> None:
        self.root, self.max_rows, self.max_bytes = root, max_rows, max_bytes
        self._open: dict[str, Shards] = {}

    def write(self, folder: str, line: bytes) -> None:
        if folder not in self._open:
            self._open[folder] = Shards(self.root, folder, self.max_rows, self.max_bytes)
        self._open[folder].write(line)

    def state(self) -> dict[str, Any]:
        return {folder: shards.state() for folder, shards in self._open.items()}

    def restore(self, state: dict[str, Any]) -> None:
        for folder, inner in state.items():
            self._open[folder] = Shards(self.root, folder, self.max_rows, self.max_bytes)
            self._open[folder].restore(inner)

    def close(self) -> list[Shard]:
        return [shard for _, shards in sorted(self._open.items()) for shard in shards.close()]

    def abort(self) -> None:
        for shards in self._open.values():
            shards.abort()


class Tokens:
    """`tokens/<split>/`; with `trl` the same rows under the name its trainer has for the mask, in `trl/<split>/`."""

    def __init__(self, name: str, folders: Folders, vocabulary: Vocabulary) -> None:
        self.name, self.folders, self.vocabulary = name, folders, vocabulary
        self.mask_name = "assistant_masks" if name == TRL else "loss_mask"

    def add(self, row: ExportRow, split: str, covered: int) -> None:
        line = token_rows.line(row, self.vocabulary, covered, mask_name=self.mask_name)
        self.folders.write(f"{self.name}/{split}", line)

    def close(self) -> list[Shard]:
        return self.folders.close()

    def abort(self) -> None:
        self.folders.abort()

    def state(self) -> dict[str, Any] | None:
        return {"folders": self.folders.state()}

    def restore(self, state: dict[str, Any]) -> None:
        self.folders.restore(state["folders"])


class Chats:
    """`<dialect>/<schema>/<split>/`."""

    def __init__(self, dialect: str, folders: Folders, vocabulary: Vocabulary, render: Render | None) -> None:
        self.dialect, self.folders, self.vocabulary, self.render = dialect, folders, vocabulary, render
        self.left_out: Counter[str] = Counter()
        self.survivals: Counter[str] = Counter()

    def add(self, row: ExportRow, split: str, covered: int) -> None:
        told = chat(self.dialect, row, self.vocabulary)
        if isinstance(told, str):
            self.left_out[told] += 1
            return
        self.folders.write(f"{self.dialect}/{told.group}/{split}", json.dumps(told.line, ensure_ascii=True).encode())
        if self.render is not None and self.survivals.total() < TRIED_ROWS:
            self.survivals[survival(row, told, self.render)] += 1

    def close(self) -> list[Shard]:
        return self.folders.close()

    def abort(self) -> None:
        self.folders.abort()

    def state(self) -> dict[str, Any] | None:
        return {"folders": self.folders.state(), "left_out": dict(self.left_out), "survivals": dict(self.survivals)}

    def restore(self, state: dict[str, Any]) -> None:
        self.folders.restore(state["folders"])
        self.left_out, self.survivals = Counter(state["left_out"]), Counter(state["survivals"])
