"""A new version beside the old one: it migrates the database while both work, and nothing is lost."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from models.store.schema import migrate
from ops.bench.rig import Rig
from ops.simulator.process import Simulator
from tests.flows.job import account, check_counters, job, totals

ROOMS = ("models", "producer", "workers", "ops")
ROOT = Path(__file__).parents[2]
ANSWERS: dict[str, Any] = {"lengths": "uniform", "min_length": 50, "max_length": 200, "tokens_per_s": 40, "reasoning_share": 0.0,
                           "profile": "smollm2", "keepalive_s": 0.0}
NEXT = '''
"""The next version's tables: it adds what older workers can ignore"""

import sqlalchemy as sa
from alembic import op

revision, down_revision, branch_labels, depends_on = "next", "{head}", None, None


def upgrade() -> None:
    for table in ("sample", "attempt", "completion", "dataset", "worker"):
        op.add_column(table, sa.Column("of_the_next_version", sa.Integer()))
    op.create_table("of_the_next_version", sa.Column("id", sa.Integer(), primary_key=True))
'''


def next_version(folder: Path) -> Path:
    """A copy of this one with a migration on top."""
    there = folder / "next"
    for room in ROOMS:
        shutil.copytree(ROOT / room, there / room, ignore=shutil.ignore_patterns("__pycache__"))
    versions = there / "models/migrations/versions"
    head = max(f.name for f in versions.glob("0*.py")).partition("_")[0]
    (versions / "9999_next.py").write_text(NEXT.format(head=head))
    return there


@contextmanager
def worker_of(version: Path, rig: Rig, name: str) -> Iterator[subprocess.Popen[bytes]]:
    with (rig.folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-P", "-m", "ops", "worker", "short", "-c", "10", "-n", name],
                                   env={**rig.environment, "PYTHONPATH": str(version)}, cwd=rig.folder, stdin=subprocess.DEVNULL,
                                   stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


def old_command(rig: Rig, *arguments: str) -> None:
    subprocess.run([sys.executable, "-P", "-m", "ops", *arguments], env=rig.environment, cwd=rig.folder, check=True,
                   capture_output=True, timeout=120)


def done_by(rig: Rig, name: str, after: Any = None) -> int:
    [(n,)] = rig.query("""select count(*) from attempt a join worker w on w.id = a.worker_id
        where w.name = %s and a.action = 'done' and (%s::timestamptz is null or a.started_at > %s)""", name, after, after)
    return int(n)


@pytest.mark.timeout(500)
def test_a_new_version_migrates_while_both_versions_work_and_nothing_is_lost(rig: Rig) -> None:
    rows = 3_000     # more than are answered: an operator ends it once both versions have shown that they work
    there = next_version(rig.folder)
    with Simulator(**ANSWERS) as simulator:
        file = job(rig, {"router": account(simulator.openrouter)}, {"B1": rows}, in_flight=20, long=2)
        run = rig.start("run", "--plan", file, "--no-export")
        rig.wait(lambda: done_by(rig, "short-1") >= 10, 120, "answers of the old version")
        subprocess.run([sys.executable, "-P", "-m", "ops", "migrate"], env={**rig.environment, "PYTHONPATH": str(there)},
                       cwd=rig.folder, check=True, capture_output=True, timeout=120)
        [(migrated_at,)] = rig.query("select clock_timestamp()")
        assert rig.query("select version_num, to_regclass('of_the_next_version') is not null from alembic_version") == [
            ("next", True)]
        with worker_of(there, rig, "new"):
            rig.wait(lambda: done_by(rig, "new") >= 10, 150, "answers of the new version")
            rig.wait(lambda: done_by(rig, "short-1", migrated_at) >= 10, 90, "answers of the old version after the migration")
            migrate(rig.urls()["database_url"])      # the old version leaves the newer database as it is
        old_command(rig, "close", "B1")
        assert run.wait(150) == 1, rig.tail()
        with rig.services():
            found = totals(rig)["B1"]
            assert (found["done"] + found["queued"], found["failed"], found["running"]) == (rows, 0, 0)
            assert found["closed_reason"] == "operator"
            check_counters(rig)
            assert rig.query("select version_num from alembic_version") == [("next",)]
            assert rig.query("select count(*) from attempt where action is null or action = 'rescue'") == [(0,)]
            summary = simulator.summary()
            assert (summary["complete"], summary["paid_twice"]) == (found["done"], 0)
