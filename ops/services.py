"""The embedded services of one home: Valkey and PostgreSQL, for whoever has set no URLs.

    home/services.json   URLs with their generated passwords (0600), ports, process ids
    home/valkey, home/postgres (or "postgres_base" of services.json), home/logs, home/run

Data, passwords and, where they are still free, ports outlive a restart. One process at a time may run them (a lock).
"""

import json
import os
import secrets
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from models.errors import ServiceError
from models.settings import SERVICES
from ops import lock, port, postgres
from ops.postgres import Postgres
from ops.process import Process, bound_log, end_orphan, last_line
from ops.valkey import Valkey

READY_S = 180.0       # PostgreSQL may first replay up to `max_wal_size` of its log
STOP_S = 60.0
EARLY_EXITS = 6       # a killed postmaster's sessions hold its memory for a moment, and then it can start again

Server = Postgres | Valkey


@dataclass
class Services:
    """Running services. From `start`; ended by `stop`, by leaving the `with` block, or with this process."""

    home: Path
    database_url: str
    redis_url: str
    flower_password: str
    _servers: tuple[Server, ...]
    _lock: IO[str]
    _processes: dict[str, Process] = field(default_factory=dict)

    def __enter__(self) -> "Services":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._processes.items()}

    def alive(self) -> bool:
        return bool(self._processes) and all(process.alive() for process in self._processes.values())

    def restart_dead(self) -> list[str]:
        """Starts again, on the same port and data, what has died; its names. Bounds the logs. Call it every second or so."""
        dead = [s for s in self._servers if not self._processes[s.name].alive()]
        for server in dead:
            self._processes[server.name] = _launch(server)
        if dead:
            _write(self)
        for process in self._processes.values():
            bound_log(process.command.log)
        return [server.name for server in dead]

    def stop(self) -> None:
        """Ends them cleanly; the data stay. A second call does nothing."""
        for server in self._servers:
            if process := self._processes.pop(server.name, None):
                process.end(server.stop_signal, STOP_S)
        if not self._lock.closed:
            _write(self)
            self._lock.close()


def start(home: Path) -> Services:
    """Services of `home` (made if missing), answering. ServiceError if one does not start, or if another process runs them."""
    home = home.absolute()
    for folder in (home, home / "logs", home / "run"):
        folder.mkdir(mode=0o755 if folder == home else 0o700, parents=True, exist_ok=True)
    with ExitStack() as undo:
        held = undo.enter_context(lock.hold(home / "services.lock"))
        known = _read(home)
        for name in ("valkey", "postgres"):
            end_orphan(home / f"run/{name}.pid", postgres.Postgres.stop_signal, STOP_S)
        services = _planned(home, known, held)
        undo.callback(services.stop)
        _write(services)    # passwords first: data whose password is lost are lost
        for server in services._servers:
            services._processes[server.name] = _launch(server)
        _write(services)
        undo.pop_all()
    return services


def _planned(home: Path, known: dict[str, Any], held: IO[str]) -> Services:
    ports = known.get("ports", {})
    elsewhere = known.get("postgres_base")
    base = Path(elsewhere) if elsewhere else home if (home / "postgres").exists() else postgres.place(home)
    pg = Postgres(home, base, port.free(ports.get("postgres")), _password(known.get("database_url")))
    if "database_url" not in known and pg.data.exists():
        raise ServiceError(service="postgres", cause=f"has data in {pg.data}, but {SERVICES} with its password is gone")
    valkey = Valkey(home, port.free(ports.get("valkey")), _password(known.get("redis_url")))
    return Services(home, pg.url, valkey.url, known.get("flower_password") or secrets.token_urlsafe(24), (valkey, pg), held)


def _password(url: str | None) -> str:
    return (urlsplit(url).password if url else None) or secrets.token_urlsafe(24)


def _launch(server: Server) -> Process:
    deadline, exits, process = time.monotonic() + READY_S, 0, Process(server.command())
    while not server.ready():
        if not process.alive():
            process.reap(0)
            exits += 1
            if exits < EARLY_EXITS:
                time.sleep(0.5 * exits)
                process = Process(server.command())
        if exits >= EARLY_EXITS or time.monotonic() > deadline:
            if process.alive():
                process.end(server.stop_signal, STOP_S)
            raise ServiceError(service=server.name, cause=f"did not start: {last_line(process.command.log)}")
        time.sleep(0.05)
    return process


def _read(home: Path) -> dict[str, Any]:
    file = home / SERVICES
    try:
        known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except (OSError, ValueError) as error:
        raise ServiceError(service=str(file), cause=f"cannot be read: {type(error).__name__}") from None
    return known if isinstance(known, dict) else {}


def _write(services: Services) -> None:
    servers = {server.name: server for server in services._servers}
    pg = servers["postgres"]
    document = {
        "database_url": services.database_url, "redis_url": services.redis_url,
        "flower_password": services.flower_password,
        "ports": {name: server.port for name, server in servers.items()}, "pids": services.pids,
        "postgres_base": str(pg.base) if isinstance(pg, Postgres) and pg.base != services.home else None,
    }
    new = services.home / f"{SERVICES}.new"
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        json.dump(document, out, indent=1)
        out.flush()
        os.fsync(out.fileno())
    new.replace(services.home / SERVICES)
