"""`draftmill doctor`: what is wrong here, and what to do about it."""

import socket
from pathlib import Path

from models.base import connect, transaction
from models.errors import DraftmillError
from models.settings import Settings
from models.store import totals
from ops.checks import fleet, machine, plans, services
from ops.checks.finding import Finding


def examine(settings: Settings, plan_file: Path | None) -> list[Finding]:
    file = plan_file or (Path("draftmill.toml") if Path("draftmill.toml").exists() else None)
    return [*machine.look(settings), *services.look(settings), *fleet.look(settings), *plans.look(settings, file)]


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
