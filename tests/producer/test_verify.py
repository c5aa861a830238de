import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from producer.export import FORMS, ExportRow, Options, export
from producer.verify import verify

Many = Callable[[int], list[ExportRow]]


@pytest.fixture
def exported(tmp_path: Path, many: Many, options: Options) -> tuple[list[ExportRow], Path, Options]:
    options = replace(options, forms=FORMS, shard_rows=20)
    rows = many(100)
    export(rows, tmp_path / "out", options)
    return rows, tmp_path / "out", options


Exported = tuple[list[ExportRow], Path, Options]


def test_an_export_agrees_with_its_rows(exported: Exported) -> None:
    rows, out, options = exported
    assert list(verify(rows, out, options)) == []


def test_rows_that_changed_vanished_or_came_since_are_named(exported: Exported) -> None:
    rows, out, options = exported
    changed = replace(rows[3], completion_ids=np.array([5, 6], dtype=np.int32), spans=(), truncated=False, finish_reason="stop",
                      trainable=True)
    assert list(verify([*rows[:3], changed, *rows[4:]], out, options)) == [f"{rows[3].id}: other ids"]
    more = replace(rows[0], id="new", primary_id=rows[99].primary_id)
    assert len(list(verify([*rows, more], out, options))) == 1
    assert any("does not have" in problem for problem in verify(rows[:99], out, options))


@pytest.mark.parametrize("damage", ["shift", "drop", "stray", "card"])
def test_files_that_were_touched_are_named(exported: Exported, damage: str) -> None:
    rows, out, options = exported
    shard = sorted((out / "tokens/train").iterdir())[0]
    lines = [json.loads(line) for line in shard.read_bytes().splitlines()]
    if damage == "shift":
        lines[0]["loss_mask"] = [*lines[0]["loss_mask"][1:], 0]
        shard.write_text("".join(json.dumps(line) + "\n" for line in lines))
    elif damage == "drop":
        shard.unlink()
    elif damage == "stray":
        (shard.parent / "manifest.json").write_text("{}")
    else:
        (out / "README.md").write_text("x")
    problems = list(verify(rows, out, options))
    expected = {"shift": "has changed", "drop": "is missing", "stray": "is not of this export", "card": "README.md has changed"}
    assert expected[damage] in problems[0]
    assert any(p.endswith("another mask") for p in problems) is (damage == "shift")
    assert any("stands in its place" in p for p in problems) is (damage == "drop")


def test_a_folder_without_manifest_is_no_export(tmp_path: Path, options: Options) -> None:
    assert list(verify([], tmp_path, options)) == ["MANIFEST.yaml cannot be read: FileNotFoundError"]
