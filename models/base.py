"""Engines and connections: how every process of draftmill reaches PostgreSQL."""

from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

from psycopg.types.array import ListBinaryDumper
from sqlalchemy import Connection, Engine, MetaData, create_engine, event
from sqlalchemy.exc import DataError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.pool import QueuePool

from models.errors import RowRefused, StoreAway, StoreError

P = ParamSpec("P")
T = TypeVar("T")


class Base(DeclarativeBase):
    metadata = MetaData(naming_convention={
        "pk": "%(table_name)s_pkey", "fk": "%(table_name)s_%(column_0_name)s_fkey",
        "uq": "%(table_name)s_%(column_0_N_name)s_key", "ck": "%(table_name)s_%(constraint_name)s",
        "ix": "%(table_name)s_%(column_0_N_name)s"})


# A worker's statements find rows by key; a plan made under stale statistics may walk a whole partial index instead
# (measured: 8 times the CPU), so these connections are told not to.
_WORKER_OPTIONS = "-c enable_seqscan=off -c plan_cache_mode=force_generic_plan"
_OPTIONS = "-c statement_timeout=600000 -c idle_in_transaction_session_timeout=120000 -c timezone=UTC"


def _arguments(worker: bool) -> dict[str, Any]:
    # A busy event loop needs seconds to connect; a worker that gave up then would miss its heartbeats.
    connect_s = 20 if worker else 5
    options = f"{_OPTIONS} {_WORKER_OPTIONS} -c statement_timeout=30000 -c lock_timeout=20000" if worker else _OPTIONS
    return {
        "connect_args": {"connect_timeout": connect_s, "options": options, "application_name": "draftmill",
                         "keepalives_idle": 15, "keepalives_interval": 5, "keepalives_count": 3,
                         "tcp_user_timeout": 30_000},
        "hide_parameters": True,  # SQLAlchemy prints them in its errors, answers included
        "pool_pre_ping": True, "pool_timeout": 30,
    }


def _prepare(connection: Any, _record: Any) -> None:
    # psycopg sends bytea[] as hex text unless lists are dumped binary: 16 times slower for 100 rows of 6 kB.
    connection.adapters.register_dumper(list, ListBinaryDumper)


def _forget_plans(context: Any) -> None:
    """A migration of a newer version changed what a kept plan answers: PostgreSQL refuses it for as long as its session lives."""
    if "cached plan must not change" in str(context.original_exception):
        context.is_disconnect = True


def connect(url: str, *, size: int = 4) -> Engine:
    """For producers and the command line."""
    engine = create_engine(url, poolclass=QueuePool, pool_size=size, max_overflow=size, **_arguments(False))
    event.listen(engine, "connect", _prepare)
    event.listen(engine, "handle_error", _forget_plans)
    return engine


def connect_async(url: str, *, size: int = 6, worker: bool = True) -> AsyncEngine:
    """Autocommit, since every verb of workers, reaper and enqueue is one statement."""
    engine = create_async_engine(url, pool_size=size, max_overflow=2, isolation_level="AUTOCOMMIT", **_arguments(worker))
    event.listen(engine.sync_engine, "connect", _prepare)
    event.listen(engine.sync_engine, "handle_error", _forget_plans)
    return engine


async def open_all(engine: AsyncEngine, size: int = 6) -> None:
    """Open the pool's connections now, while the event loop has nothing else to do."""
    with translating():
        async with AsyncExitStack() as stack:
            for _ in range(size):
                await stack.enter_async_context(engine.connect())


Verb = Callable[Concatenate[Connection, P], T]


async def perform(engine: AsyncEngine, verb: "Verb[P, T]", *args: P.args, **kwargs: P.kwargs) -> T:
    """Run one of the store's verbs on an own connection; StoreError or StoreAway when it fails."""
    with translating():
        async with engine.connect() as connection:
            return await connection.run_sync(lambda sync: verb(sync, *args, **kwargs))


async def perform_whole(engine: AsyncEngine, verb: "Verb[P, T]", *args: P.args, **kwargs: P.kwargs) -> T:
    """As `perform`, for a verb of several statements that belong into one transaction."""
    with translating():
        async with engine.connect() as connection:
            await connection.execution_options(isolation_level="READ COMMITTED")
            async with connection.begin():
                return await connection.run_sync(lambda sync: verb(sync, *args, **kwargs))


@contextmanager
def translating() -> Iterator[None]:
    """The one place where SQLAlchemy's errors become ours."""
    try:
        yield
    except DBAPIError as error:
        raise translated(error) from None
    except UnicodeEncodeError:      # half of a surrogate pair; the error itself would print the text
        raise RowRefused(cause="UnicodeEncodeError") from None
    except (OSError, PoolTimeout) as error:
        raise StoreAway(cause=type(error).__name__) from None


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """A transaction whose database errors are ours."""
    with translating(), engine.begin() as connection:
        yield connection


# Among them 25006: after a failover the old primary is read-only for a while.
_RETRYABLE = {"25006", "40001", "40P01", "55P03", "57014", "57P01", "57P02", "57P03", "53100", "53200", "53300"}
_OF_THE_ROW = ("22", "23", "54")    # data exception, integrity, a limit exceeded (appendix A of PostgreSQL's manual)


def translated(error: DBAPIError) -> StoreError:
    """SQLAlchemy's error as ours: StoreAway when trying again may help, RowRefused when what a row holds was refused.

    Never carries parameters.
    """
    state = str(getattr(error.orig, "sqlstate", None) or "")
    away = error.connection_invalidated or (isinstance(error, InterfaceError | OperationalError) and not state)
    cause = f"{type(error.orig).__name__} {state}".strip()
    if away or state in _RETRYABLE or state.startswith("08"):
        return StoreAway(cause=cause)
    if state.startswith(_OF_THE_ROW) or (isinstance(error, DataError) and not state):
        return RowRefused(cause=cause)
    return StoreError(cause=cause)
