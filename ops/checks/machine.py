"""This machine: open files, disk, the home folder and what lies in it."""

import resource
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from models.errors import StoreError
from models.settings import SERVICES, Settings
from ops.checks.finding import Finding, bad, ok
from workers.spool import orphaned

ENOUGH_FILES = 4_096
LITTLE_DISK = 2 * 1024**3
SECRETS = (Path("/run/secrets"), Path("/var/run/secrets"))     # a container's own: nobody else is there


def look(settings: Settings) -> Iterator[Finding]:
    yield from _files()
    yield from _disk(settings)
    yield from _home(settings)
    yield from _spool(settings)


def readable_by_others(file: Path) -> bool:
    return (file.exists() and bool(stat.S_IMODE(file.stat().st_mode) & 0o077)
            and not any(file.is_relative_to(place) for place in SECRETS))


def _files() -> Iterator[Finding]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= most < ENOUGH_FILES:
        yield bad(f"only {most} open files are allowed: not enough for 2,000 requests in flight",
                  "ulimit -Hn 65536, or nofile in limits.conf")
    else:
        yield ok("open files are not limited" if most < 0 else f"{most:,} open files allowed")


def _disk(settings: Settings) -> Iterator[Finding]:
    place = settings.home if settings.home.exists() else Path()
    free = shutil.disk_usage(place).free
    if free < LITTLE_DISK:
        yield bad(f"{free / 1024**2:,.0f} MB free where {settings.home} lives", "free some disk, or set DRAFTMILL_HOME elsewhere")
    else:
        yield ok(f"{free / 1024**3:,.0f} GB free for {settings.home}")


def _home(settings: Settings) -> Iterator[Finding]:
    file = settings.home / SERVICES
    if readable_by_others(file):
        yield bad(f"{file} holds passwords and others may read it", f"chmod 600 {file}")


def _spool(settings: Settings) -> Iterator[Finding]:
    spool = settings.home / "spool"
    refused = list(spool.rglob("refused-*"))
    if refused:
        yield bad(f"{len(refused)} answers that the database refused lie in {spool}", "look at them, then remove them")
    waiting = 0
    try:
        for folder in (f for f in spool.iterdir() if f.is_dir()) if spool.is_dir() else ():
            waiting += sum(len(found) for _, found in orphaned(folder))
    except StoreError as error:
        yield bad(str(error), "start a worker of the version that wrote it")
    if waiting:
        yield bad(f"{waiting} paid answers of workers that are gone lie in {spool}",
                  "start a worker in this home (draftmill worker short): it writes them into the database first")
