"""Does an export hold what the database holds? Read back with other code than wrote it, row by row, in bounded memory."""

import json
from collections.abc import Iterable, Iterator
from hashlib import file_digest
from pathlib import Path
from typing import Any

from producer.export import Options
from producer.forms import TOKENS
from producer.rows import ExportRow
from producer.shards import MARK


def verify(rows: Iterable[ExportRow], out: Path, options: Options) -> Iterator[str]:
    """Every way in which `out` differs from its manifest and from these rows, as sentences; none if all agrees.

    options: those of the export. Rows come in the order they were exported in, so files and rows are walked side by side.
    """
    try:
        manifest = json.loads((out / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        yield f"{MARK} cannot be read: {type(error).__name__}"
        return
    yield from _files(out, manifest)
    if TOKENS in options.forms and (out / TOKENS).is_dir():
        yield from _rows(rows, out, options)


def _files(out: Path, manifest: dict[str, Any]) -> Iterator[str]:
    known = {file["path"]: file for file in manifest["files"]}
    present = {str(f.relative_to(out)) for f in out.rglob("*") if f.is_file() or f.is_symlink()} - {MARK}
    yield from (f"{path} is missing" for path in sorted(known.keys() - present))
    yield from (f"{path} is not of this export" for path in sorted(present - known.keys()))
    for path in sorted(known.keys() & present):
        with (out / path).open("rb") as stream:
            if file_digest(stream, "sha256").hexdigest() != known[path]["sha256"]:
                yield f"{path} has changed since it was written"


def _rows(rows: Iterable[ExportRow], out: Path, options: Options) -> Iterator[str]:
    written: dict[str, Iterator[dict[str, Any]]] = {}
    with options.sieve() as sieve:
        for row in rows:
            reason, covered = sieve.judged(row)
            if reason is not None:
                continue
            split = options.selection.split(row.primary_id)
            found = next(written.setdefault(split, _lines(out / TOKENS / split)), None)
            if found is None:
                yield f"{row.id} is not in {split}"
            elif difference := _difference(row, covered, found):
                yield f"{row.id}: {difference}"
    for split in sorted(f.name for f in (out / TOKENS).iterdir()):
        more = sum(1 for _ in written.get(split) or _lines(out / TOKENS / split))
        if more:
            yield f"{split} has {more} rows that the database does not have"


def _lines(folder: Path) -> Iterator[dict[str, Any]]:
    for file in sorted(folder.glob("*.jsonl")):
        with file.open("rb") as stream:
            yield from (json.loads(line) for line in stream)


def _difference(row: ExportRow, covered: int, found: dict[str, Any]) -> str | None:
    if found["id"] != row.id:
        return f"{found['id']} stands in its place"
    prompt, completion = row.prompt_ids.tolist(), row.completion_ids.tolist()
    if found["input_ids"] != prompt + completion:
        return "other ids"
    if found["loss_mask"] != [int(len(prompt) <= i < len(prompt) + covered) for i in range(len(prompt) + len(completion))]:
        return "another mask"
    return None if found["exactness"] == row.grade.label else "another grade"
