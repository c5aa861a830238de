"""Bringing a database to this version's schema."""

from importlib.resources import files

from alembic import command
from alembic.config import Config
from sqlalchemy.exc import DBAPIError

from models.base import connect, translated


def _config(url: str) -> Config:
    config = Config()
    config.set_main_option("script_location", str(files("models").joinpath("migrations")))
    config.attributes["url"] = url  # not through the ini syntax: a password may hold a '%'
    return config


def migrate(database_url: str) -> None:
    """alembic upgrade head; several processes may call it at once. StoreAway when the database cannot be reached."""
    try:
        command.upgrade(_config(database_url), "head")
    except DBAPIError as error:
        raise translated(error) from None


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
