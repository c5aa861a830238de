"""PostgreSQL, Redis and Flower: reachable, safe, and of this version."""

import time
from collections.abc import Iterator
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

import redis

from models.base import connect, transaction
from models.errors import DraftmillError
from models.settings import Settings
from models.store import datasets, meters
from models.store.schema import standing
from ops.checks.finding import Finding, bad, note, ok

SKEW_S = 5.0


def look(settings: Settings) -> Iterator[Finding]:
    yield from _database(settings)
    yield from _broker(settings)
    yield from _flower(settings)


def _database(settings: Settings) -> Iterator[Finding]:
    if settings.database_url is None:
        yield note("no services run here and no URLs are set",
                   "draftmill up, or set DRAFTMILL_DATABASE_URL and DRAFTMILL_REDIS_URL")
        return
    url = settings.database_url.get_secret_value()
    engine = connect(url, size=1)
    try:
        with transaction(engine) as connection:
            server = meters.server(connection)
            schema = standing(connection)
            known = datasets.every(connection) if schema.usable else []
    except DraftmillError as error:
        refused = "28P01" in str(error) or _refused(url)
        yield bad("PostgreSQL refuses the user or password of DRAFTMILL_DATABASE_URL" if refused else str(error),
                  "take the password that the server was made with" if refused
                  else "is PostgreSQL up, and is DRAFTMILL_DATABASE_URL right?")
        return
    finally:
        engine.dispose()
    yield ok(f"PostgreSQL {server.version}, {len(known)} datasets")
    if schema.empty:
        yield bad("the database has no tables yet", "draftmill migrate")
    elif schema.behind:
        yield bad(f"the database is at version {schema.found}, this draftmill wants {schema.wanted}", "draftmill migrate")
    elif schema.newer:
        yield note(f"the database is at version {schema.found}, which is newer than this draftmill ({schema.wanted})",
                   "work goes on; update draftmill here when it suits")
    if not server.fsync:
        yield bad("PostgreSQL runs with fsync off: a crash can lose paid answers", "set fsync = on")
    skew_s = abs(server.clock - time.time())
    if skew_s > SKEW_S:
        yield note(f"this machine's clock is {skew_s:,.0f} s off the database's: harmless, since only the database's counts",
                   "times in logs differ; set the clock (NTP)")


def _refused(url: str) -> bool:
    """Whether the server itself turns us away; SQLAlchemy's error holds no state for a connection that never was."""
    import psycopg

    try:
        with psycopg.connect(url.replace("+psycopg", ""), connect_timeout=5):
            return False
    except psycopg.OperationalError as error:
        return "authentication failed" in str(error)


def _broker(settings: Settings) -> Iterator[Finding]:
    if settings.redis_url is None:
        return
    try:
        with redis.Redis.from_url(settings.redis_url.get_secret_value(), socket_timeout=5, socket_connect_timeout=5) as client:
            memory = client.info("memory")
    except redis.AuthenticationError:
        yield bad("Redis refuses the password of DRAFTMILL_REDIS_URL", "take the one of its requirepass")
        return
    except (redis.RedisError, OSError) as error:
        yield bad(f"Redis cannot be reached: {type(error).__name__}", "is it up, and is DRAFTMILL_REDIS_URL right?")
        return
    policy, limit = memory["maxmemory_policy"], memory.get("maxmemory", 0)
    if policy != "noeviction":
        yield bad(f"Redis evicts keys (maxmemory-policy {policy}): whole queues can vanish",
                  "CONFIG SET maxmemory-policy noeviction")
    elif limit and memory["used_memory"] > 0.9 * limit:
        yield bad("Redis is nearly full", "raise maxmemory; hints need a few MB")
    else:
        yield ok("Redis keeps what it is given (noeviction)")
    if not urlsplit(settings.redis_url.get_secret_value()).password:
        yield bad("Redis has no password", "set requirepass, and the password in DRAFTMILL_REDIS_URL")


def _flower(settings: Settings) -> Iterator[Finding]:
    if settings.flower_password is None:
        yield note("Flower has no password: it will only serve on the loopback", "set DRAFTMILL_FLOWER_PASSWORD")
    try:
        with urlopen(f"http://127.0.0.1:{settings.flower_port}/workers", timeout=3) as reply:
            if b"Flower" in reply.read(200_000):
                yield bad(f"Flower on port {settings.flower_port} answers without a password",
                          "set DRAFTMILL_FLOWER_PASSWORD and start it again")
    except HTTPError as error:
        error.close()       # 401: as it should be
    except (URLError, OSError, ValueError):
        pass                # none runs here
