"""Bringing a database to this version's schema."""

from dataclasses import dataclass
from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from models.base import connect, translated


def _config(url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(files("models").joinpath("migrations")))
    config.attributes["url"] = url  # not through the ini syntax: a password may hold a '%'
    return config


@dataclass(frozen=True, slots=True)
class Standing:
    """found: the version that the database is at, "" before the first. wanted: this code's.

    newer: a later draftmill has migrated it. Migrations only add what older code can ignore, so work goes on.
    """

    found: str
    wanted: str
    newer: bool

    @property
    def empty(self) -> bool:
        return not self.found

    @property
    def behind(self) -> bool:
        return self.found != self.wanted and not self.newer

    @property
    def usable(self) -> bool:
        return not self.empty


def standing(connection: Connection) -> Standing:
    script = ScriptDirectory.from_config(_config(""))
    found = MigrationContext.configure(connection).get_current_revision() or ""
    known = {revision.revision for revision in script.walk_revisions()}
    return Standing(found, script.get_current_head() or "", newer=bool(found) and found not in known)


def migrate(database_url: str) -> None:
    """alembic upgrade head; several processes may call it at once. StoreAway when the database cannot be reached.

    A database that a later version has migrated is left as it is.
    """
    engine = connect(database_url, size=1)
    try:
        with engine.connect() as connection:
            if standing(connection).newer:
                return
        command.upgrade(_config(database_url), "head")
    except DBAPIError as error:
        raise translated(error) from None
    finally:
        engine.dispose()


def reachable(database_url: str) -> None:
    """Raises StoreAway or StoreError when a statement cannot be run."""
    engine = connect(database_url, size=1)
    try:
        with engine.connect() as connection:
            connection.exec_driver_sql("select 1")
    except DBAPIError as error:
        raise translated(error) from None
    finally:
        engine.dispose()
