"""`draftmill logs`: one stream out of many files, filtered, followed and without secrets."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ops.cli import app
from ops.journal import Filter, follow, lines
from ops.process import bound_log

KEY = "sk-or-v1-0123456789abcdefCANARY"


def said(event: str, at: str, level: str = "info", **more: str) -> str:
    return json.dumps({"event": event, "level": level, "timestamp": f"2026-12-01T10:00:{at}Z", "logger": "x", **more}) + "\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "short-1.log").write_text(said("worker_starts", "01") + said("row_failed", "05", "error", dataset="B1"))
    (logs / "reaper.log").write_text(said("reaper_leads", "03") + said("dataset_closed", "04", "warning", dataset="B2"))
    (logs / "postgres.log").write_text("2026-12-01 10:00:02.123 UTC [7] LOG:  ready\n2026-12-01 10:00:06 UTC [7] FATAL:  no\n")
    return logs


def events(folder: Path, wanted: Filter, last: int = 50) -> list[str]:
    return [line.event for line in lines(folder, wanted, last)]


def test_files_are_one_stream_in_the_order_of_time(folder: Path) -> None:
    found = lines(folder, Filter(), 50)
    assert [line.process for line in found] == ["short-1", "postgres", "reaper", "reaper", "short-1", "postgres"]
    assert [line.event for line in lines(folder, Filter(), 2)] == ["row_failed", found[-1].event]


def test_filters_are_by_process_level_and_dataset(folder: Path) -> None:
    assert events(folder, Filter(["short"])) == ["worker_starts", "row_failed"]
    assert [line.process for line in lines(folder, Filter(level="error"), 50)] == ["short-1", "postgres"]
    assert events(folder, Filter(datasets=["B2"])) == ["dataset_closed"]


def test_a_tracebacks_lines_stay_where_they_were(folder: Path) -> None:
    (folder / "short-1.log").write_text(said("one", "01") + "Traceback:\n  File x\n" + said("two", "05"))
    assert events(folder, Filter(["short"])) == ["one", "Traceback:", "  File x", "two"]


def test_followed_are_new_lines_new_files_and_what_comes_after_a_file_was_cut_back(folder: Path) -> None:
    log = folder / "short-1.log"

    def steps() -> Iterator[bool]:
        with log.open("a") as out:
            out.write(said("whole", "10") + '{"event": "half')
        yield False
        with log.open("a") as out:
            out.write('", "level": "info"}\n')
        (folder / "long-1.log").write_text(said("appeared", "11"))
        yield False
        bound_log(log, max_bytes=10)
        with log.open("a") as out:
            out.write(said("cut back", "12"))
        yield False
        yield True

    step = steps()
    assert [line.event for line in follow(folder, Filter(), lambda: next(step))] == ["whole", "appeared", "half", "cut back"]
    assert log.with_suffix(".log.1").exists()
    assert "whole" in events(folder, Filter(["short"]))      # the older copy is read as well


def test_the_command_prints_json_where_nobody_watches_and_no_secret(folder: Path) -> None:
    with (folder / "flower.log").open("w") as out:
        out.write(f"started with Bearer {KEY} on redis://:{KEY}@h/0\n")
    done = CliRunner().invoke(app, ["logs", "--home", str(folder.parent)])
    assert done.exit_code == 0, done.output
    found = [json.loads(line) for line in done.output.splitlines()]
    assert {line["process"] for line in found} == {"short-1", "reaper", "postgres", "flower"}
    assert "CANARY" not in done.output
    assert found[-1]["level"] == "error"


def test_a_home_in_which_nothing_has_run_says_so(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["logs", "--home", str(tmp_path)])
    assert done.exit_code != 0
    assert "nothing has run" in str(done.exception)
