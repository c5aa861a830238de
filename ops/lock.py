"""One process at a time runs a thing of a home; the kernel lets go of the lock with the process, however that ends."""

import fcntl
from pathlib import Path
from typing import IO

from models.errors import ServiceError


def hold(path: Path) -> IO[str]:
    """Held until the file is closed. ServiceError if another process holds it."""
    lock = path.open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise ServiceError(service=path.parent.name, cause=f"is being run by another draftmill process ({path})") from None
    return lock
