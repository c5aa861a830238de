"""The token form as Parquet, for whoever reads it with DuckDB or pandas. Needs the extra `parquet`."""

from collections import Counter
from pathlib import Path
from typing import Any

from models.errors import SettingsError
from producer import token_rows
from producer.rows import ExportRow
from producer.selection import Vocabulary
from producer.shards import Shard, sealed

FOLDER = "parquet"


class Parquet:
    """`parquet/<split>/part-00000.parquet`: the columns of the token form, one row group per 1,000 rows."""

    GROUP = 1_000

    def __init__(self, root: Path, max_rows: int, vocabulary: Vocabulary) -> None:
        try:
            import pyarrow
            from pyarrow import parquet
        except ImportError:
            raise SettingsError(cause="Parquet needs pyarrow: pip install 'draftmill[parquet]'") from None
        self._arrow, self._parquet = pyarrow, parquet
        self.root, self.max_rows, self.vocabulary = root, max_rows, vocabulary
        self._rows: dict[str, list[dict[str, Any]]] = {}
        self._writers: dict[str, Any] = {}
        self._counts: Counter[str] = Counter()
        self._parts: Counter[str] = Counter()
        self._done: list[Shard] = []

    def _schema(self) -> Any:
        a = self._arrow
        text, number, flag = a.string(), a.int64(), a.bool_()
        head = [("id", text), ("primary_id", text), ("input_ids", a.list_(a.int32())), ("loss_mask", a.list_(a.int8()))]
        head += [("text", text)] if self.vocabulary.decode is not None else []
        flat = [("dataset", text), ("turn", number), ("finish_reason", text), ("truncated", flag), ("is_tool_call", flag),
                ("prompt_tokens", number), ("completion_tokens", number), ("model", text), ("provider", text),
                ("quantization", text), ("temperature", a.float64()), ("exactness", text), ("extra", text)]
        return a.schema([a.field(name, kind, nullable=False) for name, kind in head + flat])

    def add(self, row: ExportRow, split: str, covered: int) -> None:
        value: dict[str, Any] = {
            "id": row.id, "primary_id": row.primary_id, "input_ids": token_rows.ids(row),
            "loss_mask": token_rows.mask(row, covered), **token_rows.scalars(row, covered), "extra": token_rows.extra(row)}
        if self.vocabulary.decode is not None:
            value["text"] = self.vocabulary.decode(token_rows.ids(row))
        self._rows.setdefault(split, []).append(value)
        if len(self._rows[split]) == self.GROUP:
            self._flush(split)

    def _flush(self, split: str) -> None:
        rows = self._rows.pop(split, [])
        if split not in self._writers:
            path = self.root / self._path(split)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writers[split] = self._parquet.ParquetWriter(path, self._schema(), compression="zstd")
        self._writers[split].write_table(self._arrow.Table.from_pylist(rows, schema=self._schema()))
        self._counts[split] += len(rows)
        if self._counts[split] >= self.max_rows:
            self._finish(split)

    def _path(self, split: str) -> str:
        return f"{FOLDER}/{split}/part-{self._parts[split]:05d}.parquet"

    def _finish(self, split: str) -> None:
        self._writers.pop(split).close()
        self._done.append(sealed(self.root, self._path(split), self._counts.pop(split)))
        self._parts[split] += 1

    def close(self) -> list[Shard]:
        for split in sorted(self._rows):
            self._flush(split)
        for split in sorted(self._writers):
            self._finish(split)
        return sorted(self._done, key=lambda shard: shard.path)

    def abort(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def state(self) -> dict[str, Any] | None:
        return None     # a file without its footer cannot be gone on with

    def restore(self, state: dict[str, Any]) -> None:
        raise NotImplementedError
