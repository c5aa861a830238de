"""A database that another version migrates, under the feet of this one."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.config import Config
from sqlalchemy import text

from models.base import connect, transaction
from models.errors import StoreAway
from models.store import schema, totals

NEXT = 'revision, down_revision, branch_labels, depends_on = "next", "{head}", None, None\ndef upgrade() -> None: ...\n'


@pytest.fixture
def newer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The next version's migrations, for as long as the test lasts; the head below them."""
    shutil.copytree(Path(schema.__file__).parents[1] / "migrations", tmp_path / "migrations")
    versions = tmp_path / "migrations/versions"
    head = max(f.name for f in versions.glob("0*.py")).partition("_")[0]
    (versions / "9999_next.py").write_text(NEXT.format(head=head))
    real = schema._config

    def config(url: str) -> Config:
        found = real(url)
        found.set_main_option("script_location", str(tmp_path / "migrations"))
        return found

    monkeypatch.setattr(schema, "_config", config)
    yield head
    monkeypatch.undo()


def standing(database: str) -> schema.Standing:
    engine = connect(database, size=1)
    try:
        with transaction(engine) as connection:
            return schema.standing(connection)
    finally:
        engine.dispose()


def test_a_database_is_behind_until_it_is_migrated(database: str, newer: str) -> None:
    found = standing(database)
    assert (found.found, found.wanted, found.behind, found.newer) == (newer, "next", True, False)
    schema.migrate(database)
    assert not standing(database).behind


def test_an_older_version_leaves_a_newer_database_as_it_is(database: str, newer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schema.migrate(database)
    monkeypatch.undo()
    found = standing(database)
    assert (found.found, found.wanted, found.newer, found.behind, found.usable) == ("next", newer, True, False, True)
    schema.migrate(database)
    assert standing(database).found == "next"


def test_a_plan_that_a_migration_spoilt_is_forgotten_after_one_refusal(database: str) -> None:
    engine, other = connect(database, size=1), connect(database, size=1)
    try:
        for _ in range(8):      # psycopg keeps the plan from the sixth on
            with transaction(engine) as connection:
                connection.execute(text("select * from dataset")).all()
        with transaction(other) as connection:
            connection.execute(text("alter table dataset add column of_the_next_version integer"))
        with pytest.raises(StoreAway), transaction(engine) as connection:
            connection.execute(text("select * from dataset")).all()
        with transaction(engine) as connection:
            assert connection.execute(text("select * from dataset")).all() == []
    finally:
        engine.dispose()
        other.dispose()


def test_what_people_read_does_not_notice_a_new_column(database: str) -> None:
    engine = connect(database, size=1)
    other = connect(database, size=1)
    try:
        for i in range(12):
            with transaction(engine) as connection:
                assert totals.datasets(connection) == []
            if i == 8:
                with transaction(other) as connection:
                    connection.execute(text("alter table dataset add column of_the_next_version integer"))
    finally:
        engine.dispose()
        other.dispose()
