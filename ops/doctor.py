"""`draftmill doctor`: what is wrong here, and what to do about it."""

import os
import resource
import shutil
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import redis
from sqlalchemy import text

from models import plan as plans
from models.base import connect, transaction
from models.errors import DraftmillError
from models.settings import SERVICES, Settings
from models.store import datasets, totals

ENOUGH_FILES = 4_096
LITTLE_DISK = 2 * 1024**3


@dataclass(frozen=True, slots=True)
class Finding:
    """level: ok, note or bad. remedy: what to do, "" when nothing is to be done."""

    level: str
    what: str
    remedy: str = ""

    @property
    def bad(self) -> bool:
        return self.level == "bad"

    @property
    def mark(self) -> str:
        return {"ok": "ok  ", "note": "note", "bad": "BAD "}[self.level]


def ok(what: str) -> Finding:
    return Finding("ok", what)


def bad(what: str, remedy: str) -> Finding:
    return Finding("bad", what, remedy)


def examine(settings: Settings, plan_file: Path | None) -> list[Finding]:
    found: list[Finding] = []
    for check in (_files, _disk, _database, _fleet, _broker, _home, _flower):
        found += check(settings)
    file = plan_file or (Path("draftmill.toml") if Path("draftmill.toml").exists() else None)
    return found + (list(_plan(settings, file)) if file else [])


def worker_alive(settings: Settings) -> bool:
    """Whether a worker of this machine has beaten lately, on the database's clock (a container's health check)."""
    if settings.database_url is None:
        return False
    try:
        with transaction(connect(settings.database_url.get_secret_value(), size=1)) as connection:
            return any(
                w.host == socket.gethostname() and w.heartbeat_age_s < settings.dead_after_s for w in totals.workers(connection)
            )
    except DraftmillError:
        return False


def _files(_settings: Settings) -> Iterator[Finding]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < ENOUGH_FILES:
        yield bad(
            f"only {most} open files are allowed: not enough for 2,000 requests in flight",
            "ulimit -Hn 65536, or nofile in limits.conf",
        )
    else:
        yield ok(f"{most:,} open files allowed")


def _disk(settings: Settings) -> Iterator[Finding]:
    place = settings.home if settings.home.exists() else Path()
    free = shutil.disk_usage(place).free
    if free < LITTLE_DISK:
        yield bad(f"{free / 1024**2:,.0f} MB free where {settings.home} lives", "free some disk, or set DRAFTMILL_HOME elsewhere")
    else:
        yield ok(f"{free / 1024**3:,.0f} GB free for {settings.home}")


def _database(settings: Settings) -> Iterator[Finding]:
    if settings.database_url is None:
        yield Finding(
            "note",
            "no services run here and no URLs are set",
            "draftmill up, or set DRAFTMILL_DATABASE_URL and DRAFTMILL_REDIS_URL",
        )
        return
    try:
        with transaction(connect(settings.database_url.get_secret_value(), size=1)) as connection:
            version = connection.execute(text("show server_version")).scalar_one()
            migrated = connection.execute(text("select to_regclass('alembic_version') is not null")).scalar_one()
            fsync = connection.execute(text("show fsync")).scalar_one()
            known = datasets.every(connection) if migrated else []
    except DraftmillError as error:
        yield bad(str(error), "is PostgreSQL up, and is DRAFTMILL_DATABASE_URL right?")
        return
    yield ok(f"PostgreSQL {version}, {len(known)} datasets")
    if not migrated:
        yield bad("the database has no tables yet", "draftmill migrate")
    if fsync != "on":
        yield bad("PostgreSQL runs with fsync off: a crash can lose paid answers", "set fsync = on")
    for dataset in known:
        for name, account in dataset.accounts.items():
            yield from _key(settings, name, account, f"dataset {dataset.name}")


def _fleet(settings: Settings) -> Iterator[Finding]:
    if settings.database_url is None:
        return
    try:
        with transaction(connect(settings.database_url.get_secret_value(), size=1)) as connection:
            fleet = totals.workers(connection)
    except DraftmillError:
        return
    for w in fleet:
        if w.heartbeat_age_s > settings.dead_after_s:
            yield bad(
                f"worker {w.name} on {w.host} has not beaten for {w.heartbeat_age_s:.0f} s",
                "is a reaper running? draftmill reaper",
            )
        elif w.facts.get("token_wait_ms", 0) > 2_000:
            yield Finding(
                "note", f"answers wait {w.facts['token_wait_ms']} ms for a token thread in {w.name}", "add a worker process"
            )
        elif w.facts.get("spool"):
            yield bad(
                f"{w.facts['spool']} paid answers wait in the spool of {w.name}", "is the database reachable and its disk free?"
            )
    yield ok(f"{len(fleet)} workers")


def _broker(settings: Settings) -> Iterator[Finding]:
    if settings.redis_url is None:
        return
    try:
        with redis.Redis.from_url(settings.redis_url.get_secret_value(), socket_timeout=5, socket_connect_timeout=5) as client:
            memory = client.info("memory")
    except (redis.RedisError, OSError) as error:
        yield bad(f"Redis cannot be reached: {type(error).__name__}", "is it up, and is DRAFTMILL_REDIS_URL right?")
        return
    policy, limit = memory["maxmemory_policy"], memory.get("maxmemory", 0)
    if policy != "noeviction":
        yield bad(
            f"Redis evicts keys (maxmemory-policy {policy}): whole queues can vanish", "CONFIG SET maxmemory-policy noeviction"
        )
    elif limit and memory["used_memory"] > 0.9 * limit:
        yield bad("Redis is nearly full", "raise maxmemory; hints need a few MB")
    else:
        yield ok("Redis keeps what it is given (noeviction)")
    if not urlsplit(settings.redis_url.get_secret_value()).password:
        yield bad("Redis has no password", "set requirepass, and the password in DRAFTMILL_REDIS_URL")


def _home(settings: Settings) -> Iterator[Finding]:
    file = settings.home / SERVICES
    if file.exists() and stat.S_IMODE(file.stat().st_mode) & 0o077:
        yield bad(f"{file} holds passwords and others may read it", f"chmod 600 {file}")
    refused = list((settings.home / "spool").glob("refused-*"))
    if refused:
        yield bad(
            f"{len(refused)} answers that the database refused lie in {settings.home / 'spool'}", "look at them, then remove them"
        )


def _flower(settings: Settings) -> Iterator[Finding]:
    if settings.flower_password is None:
        yield Finding("note", "Flower has no password: it will only serve on the loopback", "set DRAFTMILL_FLOWER_PASSWORD")


def _key(settings: Settings, name: str, account: plans.Account, whose: str) -> Iterator[Finding]:
    try:
        key = settings.key_of(name, account)
    except DraftmillError as error:
        yield bad(f"{whose}: {error}", f"put the key there, or set DRAFTMILL_API_KEY_FILE_{name.upper()}")
        return
    if key is None and account.kind == "openrouter":
        yield bad(f"{whose}: account {name!r} has no key", "api_key_file in the plan, --api-key-file, or DRAFTMILL_API_KEY_FILE")
    file = account.api_key_file or settings.api_key_file
    if file and file.exists() and stat.S_IMODE(os.stat(file).st_mode) & 0o077:
        yield bad(f"the key file {file} can be read by others", f"chmod 600 {file}")


def _plan(settings: Settings, file: Path) -> Iterator[Finding]:
    try:
        plan = plans.read(file)
    except DraftmillError as error:
        yield bad(str(error), "mend the plan")
        return
    yield ok(f"{file}: {len(plan.datasets)} datasets, {len(plan.accounts)} accounts")
    for name, account in plan.accounts.items():
        yield from _key(settings, name, account, str(file))
    for name, dataset in plan.datasets.items():
        for prompts in dataset.prompts:
            if not prompts.exists():
                yield bad(f"dataset {name}: there are no prompts at {prompts}", "mend the path in the plan")
        yield from _profile(settings, name, dataset.profile)


def _profile(settings: Settings, dataset: str, name: str) -> Iterator[Finding]:
    from models.tokens import profile

    try:
        profile.load(name, settings.home)
    except DraftmillError as error:
        yield bad(
            f"dataset {dataset}: {error}", f"put the tokenizer below {settings.home / 'tokenizers'}, or let it be downloaded"
        )
