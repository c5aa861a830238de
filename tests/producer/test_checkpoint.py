"""An export that was killed goes on, and what comes out is what an undisturbed one writes, byte for byte."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from producer import export as module
from producer.checkpoint import packed, unpacked
from producer.export import ExportRow, Options, export, export_from
from producer.likeness import Rule
from tests.producer.test_export import files

Many = Callable[[int], list[ExportRow]]
FORMS = ("tokens", "trl", "messages", "specforge")


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH", 16)
    monkeypatch.setattr(module, "EVERY_ROWS", 64)


@pytest.fixture
def numbered(many: Many) -> list[ExportRow]:
    return [replace(row, sample_id=n + 1) for n, row in enumerate(many(400))]


class Source:
    """Rows after a sample; breaks down after so many."""

    def __init__(self, rows: list[ExportRow], breaks_at: int | None = None) -> None:
        self.rows, self.breaks_at, self.asked = rows, breaks_at, (0, "")

    def __call__(self, after: int, until: str) -> Iterator[ExportRow]:
        self.asked = after, until
        for row in self.rows:
            if row.sample_id > after:
                if row.sample_id == self.breaks_at:
                    raise ConnectionError("gone")
                yield row


@pytest.mark.parametrize("breaks_at", [70, 200, 399])
def test_what_goes_on_ends_like_what_was_never_disturbed(
        tmp_path: Path, numbered: list[ExportRow], options: Options, breaks_at: int) -> None:
    options = replace(options, forms=FORMS, shard_rows=37, render=lambda *_: None)
    export(numbered, tmp_path / "whole", options)
    with pytest.raises(module.ExportRefused):
        export_from(Source(numbered, breaks_at), "T1", tmp_path / "out", options)
    assert not (tmp_path / "out").exists()
    source = Source(numbered)
    export_from(source, "T2", tmp_path / "out", options, resume=True)
    after, until = source.asked
    assert after == (breaks_at - 1) // 64 * 64
    assert until == "T1"        # what was stored since the beginning stays out
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    assert {p.name for p in tmp_path.iterdir()} == {"out", "whole"}


def test_other_options_and_no_wish_to_resume_begin_anew(tmp_path: Path, numbered: list[ExportRow], options: Options) -> None:
    for again, resume in ((options, False), (replace(options, mask_end=True), True)):
        with pytest.raises(module.ExportRefused):
            export_from(Source(numbered, 200), "T1", tmp_path / "out", options)
        source = Source(numbered)
        export_from(source, "T2", tmp_path / "out", again, resume=resume)
        assert source.asked == (0, "T2")


@pytest.mark.parametrize("change", [{"forms": ("tokens", "parquet")}, {"likeness": Rule(exact=True)}])
def test_what_cannot_go_on_begins_anew_and_leaves_nothing_behind(
        tmp_path: Path, numbered: list[ExportRow], options: Options, change: dict[str, object]) -> None:
    options = replace(options, **change)  # type: ignore[arg-type]
    with pytest.raises(module.ExportRefused):
        export_from(Source(numbered, 200), "T1", tmp_path / "out", options)
    assert list(tmp_path.iterdir()) == []
    source = Source(numbered)
    export_from(source, "T2", tmp_path / "out", options, resume=True)
    assert source.asked == (0, "T2")


KILLED = """
import sys, numpy as np, time
from pathlib import Path
from models.states import Grade
from producer import export as module
from producer.export import *
module.BATCH, module.EVERY_ROWS = 16, 64
def rows(after, until, stop=int(sys.argv[2])):
    for i in range(after + 1, 1_001):
        if i == stop:
            print("half", flush=True)
            time.sleep(60)
        yield ExportRow(id=str(i), key="k", primary_id=str(i), dataset="B", turn=0, prompt={}, prompt_ids=np.full(9, 5, np.int32),
            completion_ids=np.arange(i % 90 + 1, dtype=np.int32) % 10, spans=(), grade=Grade.ENGINE, finish_reason="stop",
            sample_id=i)
export_from(rows, "T", Path(sys.argv[1]), Options(Vocabulary(10), shard_rows=100, draft_sizes=(4,)), resume=len(sys.argv) > 3)
"""


def test_an_export_killed_outright_goes_on(tmp_path: Path) -> None:
    repo = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", KILLED, tmp_path / "whole", "0"], cwd=repo, check=True)
    for stop in ("500", "900"):
        arguments = [sys.executable, "-c", KILLED, str(tmp_path / "out"), stop, *(["resume"] if stop == "900" else [])]
        with subprocess.Popen(arguments, cwd=repo, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"half\n"
            os.kill(process.pid, signal.SIGKILL)
        assert not (tmp_path / "out").exists()
    subprocess.run([sys.executable, "-c", KILLED, tmp_path / "out", "0", "resume"], cwd=repo, check=True)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_counters_come_back_as_they_were(tmp_path: Path, numbered: list[ExportRow], options: Options) -> None:
    tally = export(numbered, tmp_path / "out", options).tally
    assert unpacked(packed(tally)) == tally
    assert np.sum(list(tally.grades_of_provider.values())) == tally.rows
