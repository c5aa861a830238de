"""Whole runs in folders of their own."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ops.bench.rig import Rig


@pytest.fixture
def rig(services: object) -> Iterator[Rig]:
    """A run to be started; whatever it leaves is killed. (`services`: skipped or failed together with them.)"""
    folder = Path(tempfile.mkdtemp(prefix="draftmill-flow-"))
    folder.chmod(0o755)   # root's PostgreSQL runs as nobody and must be able to enter
    rig = Rig(folder)
    try:
        yield rig
    finally:
        rig.kill_everything()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The main job's flows belong to the default suite. Other whole runs are slow, and what is slow already is full size."""
    for item in items:
        if item.path.parent != Path(__file__).parent:
            continue
        if item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.full)
        elif item.path.name != "test_main_job.py":
            item.add_marker(pytest.mark.slow)
