"""Alembic's entry. Migrations expand first: a version may only add what older workers can ignore."""

from alembic import context
from sqlalchemy import text

from models import tables  # noqa: F401  (fills the metadata)
from models.base import Base, connect

MIGRATION_LOCK = 7_145_001  # one migration at a time, whoever starts it

engine = connect(context.config.attributes["url"], size=1)
with engine.connect() as connection:
    connection.execute(text("select pg_advisory_lock(:p_key)"), {"p_key": MIGRATION_LOCK})
    try:
        context.configure(connection=connection, target_metadata=Base.metadata, compare_type=True)
        with context.begin_transaction():
            context.run_migrations()
        connection.commit()
    finally:
        connection.rollback()
        connection.execute(text("select pg_advisory_unlock(:p_key)"), {"p_key": MIGRATION_LOCK})
        connection.commit()
engine.dispose()
