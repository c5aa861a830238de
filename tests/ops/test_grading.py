"""Stored replies read again out of a real database: calibrated, graded again, verified, audited; also when killed on the way."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, text
from typer.testing import CliRunner

from models.base import connect
from models.states import Grade
from models.tokens import profile
from models.tokens.model import Model
from models.tokens.replay import Style
from ops.bench import replies, truth
from ops.cli import app
from ops.grading import BATCH, calibrate, regrade
from ops.importing import import_files, plan_of

ROWS = 1000
WAITING = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
STATE = """
select s.key, c.sample_id, c.grade, c.candidates, c.rule, c.reason, c.delta, c.prompt_delta, c.version, c.n_tokens, c.spans::text,
  c.ids, c.prompt_ids, c.provider from completion c join sample s on s.id = c.sample_id"""


@pytest.fixture(scope="module")
def home(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("home")
    (made / "tokenizers").symlink_to(shared / "tokenizers")
    return made


@pytest.fixture(scope="module")
def kimi(home: Path) -> Model:
    return Model.open(profile.load("kimi-k2.5", home))


@pytest.fixture
def engine(database: str) -> Iterator[Engine]:
    made = connect(database)
    yield made
    made.dispose()


def take_in(engine: Engine, home: Path, model: Model, rows: int) -> None:
    """OpenRouter-shaped replies of one engine and four providers, some rows non-canonical, an eighth of them cut."""
    random, fifth = Random(7), rows // 5
    plain = truth.rows(model, random, 4 * fifth, 3e-4, truth.STEADY, False, 1)
    calls = truth.rows(model, random, fifth, 3e-4, truth.STEADY, True, 1)
    styles = (replies.ENGINE, Style("raw"), Style("strips", strip=True), Style("unbilled", stop_billed=False))
    groups = [(s, plain[n * fifth:(n + 1) * fifth]) for n, s in enumerate(styles)]
    groups.append((Style("parses", parsed=True, renamed=True), calls))
    file = replies.write(home / "replies.jsonl", replies.lines(model, groups))
    import_files(engine, "B1", [file], home, plan_of("B1", "moonshotai/kimi-k2.5", "kimi-k2.5"))


def state(engine: Engine) -> dict[str, Any]:
    """All that a regrade writes, by the row's key."""
    with engine.connect() as connection:
        return {row.key: row for row in connection.execute(text(STATE))}


def grades(found: dict[str, Any], provider: str) -> set[Grade]:
    return {Grade(row.grade) for row in found.values() if row.provider == provider}


def regrading(database: str, home: Path, seed: str) -> subprocess.Popen[str]:
    env = {**os.environ, "DRAFTMILL_DATABASE_URL": database, "PYTHONHASHSEED": seed}
    command = [sys.executable, "-m", "ops", "regrade", "--home", str(home)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)


def killed_at(sample_id: int, database: str, home: Path) -> None:
    """A regrade that waits for this row, since somebody else holds it, is killed there."""
    url = database.replace("+psycopg", "")
    with psycopg.connect(url) as holder, psycopg.connect(url, autocommit=True) as watcher:
        holder.execute("select 1 from completion where sample_id = %s for update", (sample_id,))
        with regrading(database, home, "3") as process:
            deadline = time.monotonic() + 100
            while not watcher.execute(WAITING).fetchall():
                assert process.poll() is None, "it ended before it could be killed"
                assert time.monotonic() < deadline
                time.sleep(0.05)
            process.kill()
        holder.rollback()


@pytest.mark.slow
def test_a_thousand_replies_have_the_grades_they_would_have_had_without_a_kill(
        engine: Engine, database: str, home: Path, kimi: Model) -> None:
    take_in(engine, home, kimi, ROWS)
    before = state(engine)
    assert grades(before, "raw") <= {Grade.DRIFT, Grade.REJECTED}     # no provider is calibrated yet
    assert [c for _, c, new in calibrate(engine, [], home) if c.settled and new]
    killed_at(sorted(row.sample_id for row in before.values())[ROWS * 2 // 3], database, home)
    wrote = sum(before[key] != row for key, row in state(engine).items())
    assert BATCH <= wrote < ROWS - BATCH, "the kill was not in the middle"
    with regrading(database, home, "4") as again:
        assert f"{ROWS - ROWS // 5 - wrote} rows graded again" in again.communicate(timeout=120)[0]
    after = state(engine)
    assert len(after) == ROWS
    assert list(regrade(engine, [], home, every=True)) == [("B1", ROWS, 0)]     # in one process that nobody kills
    assert state(engine) == after
    assert Grade.VERIFIED in grades(after, "raw") & grades(after, "strips") & grades(after, "unbilled")
    assert grades(after, "engine") == {Grade.ENGINE}


def told(home: Path, *command: str, code: int = 0) -> str:
    found = CliRunner().invoke(app, [*command, "--home", str(home)])
    assert found.exit_code == code, found.output
    return found.output


@pytest.mark.slow
def test_the_commands_tell_conventions_grades_drift_and_how_honest_it_all_is(
        engine: Engine, home: Path, kimi: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ops.cli.rows.engine_of", lambda _: engine)
    take_in(engine, home, kimi, 500)
    learned = told(home, "calibrate")
    assert "moonshotai/kimi-k2.5 (kimi-k2.5) by raw, stop: settled, new" in learned
    assert "end:think: billed - rebuilt = +0 in" in learned
    assert "prompts: billed - rendered = +0 in 100% of" in learned
    assert "B1: 400 rows graded again" in learned
    assert ", new" not in told(home, "calibrate")
    report = told(home, "verify", "B1")
    assert "100 engine" in report
    assert "completion tokens billed but not kept: " in report
    assert "raw: " in report
    assert "silently inexact, estimated: " in report
    honest = told(home, "audit")
    assert "raw partition" in honest
    assert "exact (" in honest
    with engine.begin() as connection:
        connection.execute(text("update completion c set ids = prompt_ids from (select min(sample_id) as id from completion) m "
                                "where c.sample_id = m.id"))
    spoiled = told(home, "verify", "B1", code=1)
    assert "1 spans do not cover the completion" in spoiled
