"""The tables as migrations make them."""

import multiprocessing

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from models import tables
from models.base import Base, connect
from models.errors import StoreAway
from models.store.schema import migrate, reachable

STORED_EXTERNAL = {("sample", "prompt"), ("completion", "prompt_ids"), ("completion", "ids"), ("completion", "raw"),
                   ("partial", "ids"), ("partial", "raw")}


@pytest.fixture
def empty(database):
    """A database without tables."""
    with psycopg.connect(database.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("drop schema public cascade")
        connection.execute("create schema public")
    return database


def _tables(url):
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        return {row[0] for row in connection.execute(
            "select table_name from information_schema.tables where table_schema = 'public'")}


def test_migrating_an_empty_database_makes_every_table(empty):
    migrate(empty)
    assert _tables(empty) == {*Base.metadata.tables, "alembic_version", "samples"}


def test_migrating_again_changes_nothing(database):
    before = _tables(database)
    migrate(database)
    assert _tables(database) == before


def test_several_processes_may_migrate_at_once(empty):
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=migrate, args=(empty,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [p.exitcode for p in processes] == [0] * 4
    assert {tables.Sample.__tablename__, "samples"} <= _tables(empty)


def test_the_tables_in_python_and_those_of_the_migrations_are_the_same(database):
    engine = connect(database)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        differences = compare_metadata(context, Base.metadata)
    engine.dispose()
    assert differences == []


def test_what_is_compressed_already_is_not_compressed_again(database):
    with psycopg.connect(database.replace("+psycopg", "")) as connection:
        external = connection.execute(
            "select c.relname, a.attname from pg_attribute a join pg_class c on c.oid = a.attrelid "
            "where a.attstorage = 'e' and c.relkind = 'r' and c.relnamespace = 'public'::regnamespace").fetchall()
    assert set(external) == STORED_EXTERNAL


def test_a_database_that_is_away_is_told_as_such():
    url = "postgresql+psycopg://draftmill:very-secret@127.0.0.1:1/none"
    for verb in (migrate, reachable):
        with pytest.raises(StoreAway) as refusal:
            verb(url)
        assert "very-secret" not in str(refusal.value)
