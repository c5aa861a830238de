"""Full disks: PostgreSQL's, and that of the spool while PostgreSQL is away. Small file systems are mounted for it."""

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.chaos.faults import Fault
from tests.chaos.fleet import Fleet, Outcome


@pytest.fixture
def small_disk() -> Iterator[Callable[[Path, int], Path]]:
    """(folder, MB) -> the folder, with so much room."""
    mounted: list[Path] = []

    def mount(folder: Path, size_mb: int) -> Path:
        folder.mkdir(parents=True)
        command = ["mount", "-t", "tmpfs", "-o", f"size={size_mb}m,mode=755", "tmpfs", str(folder)]
        if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("a small file system cannot be mounted here")
        mounted.append(folder)
        return folder
    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=False)


@pytest.fixture
def home() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="draftmill-chaos-"))
    folder.chmod(0o755)
    return folder


def fill(folder: Path) -> Path:
    """Until not a byte more fits."""
    path = folder / "filler"
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(65_536))
    return path


@pytest.mark.timeout(400)
def test_postgres_without_room_goes_on_when_there_is_some(
    suffers: Callable[..., Outcome], small_disk: Callable[[Path, int], Path], home: Path,
) -> None:
    disk = small_disk(home / "services", 600)

    def no_room(fleet: Fleet) -> None:
        filler = fill(disk)
        time.sleep(25)
        filler.unlink()
        fleet.recovers()
    found = suffers(Fault("PostgreSQL: disk full for 25 s", "nothing is paid twice", no_room, rows=450), home)
    assert found.kept, found


@pytest.mark.timeout(400)
def test_answers_stay_in_memory_where_the_spool_has_no_room(
    suffers: Callable[..., Outcome], small_disk: Callable[[Path, int], Path], home: Path,
) -> None:
    disk = small_disk(home / "home/spool", 1)

    def no_room(fleet: Fleet) -> None:
        filler = fill(disk)
        with fleet.away("postgres"):
            time.sleep(15)
        fleet.recovers()
        filler.unlink()
    found = suffers(Fault("spool: disk full while PostgreSQL is away", "nothing is paid twice", no_room), home)
    assert found.kept, found
