"""A fleet for each test, what an undisturbed run gives, and the table of results."""

import fcntl
import importlib.util
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.chaos import table
from tests.chaos.faults import Fault
from tests.chaos.fleet import QUICK, ROWS_OF, SEED, Fleet, Outcome
from tests.conftest import NEEDS_LOCAL, absent

MOST_ROWS = 450      # of most faults, so that one undisturbed run does for them


@pytest.fixture(scope="session")
def installed() -> None:
    """Skipped, or failed in CI, where services cannot be started."""
    for name in NEEDS_LOCAL:
        if importlib.util.find_spec(name) is None:
            absent(f"the package {name}")


@pytest.fixture
def fleet(installed: None) -> Iterator[Callable[..., Fleet]]:
    """Makes standing fleets, each with services of its own; whatever they leave is killed."""
    with ExitStack() as stack:
        def make(env: Mapping[str, str] | None = None, folder: Path | None = None, seed: int = SEED, **behaviour: Any) -> Fleet:
            place = folder or Path(tempfile.mkdtemp(prefix="draftmill-chaos-"))
            place.chmod(0o755)
            stack.callback(shutil.rmtree, place, True)
            return stack.enter_context(Fleet(place, seed, {**QUICK, **(env or {})}, behaviour).standing())
        yield make


@pytest.fixture(scope="session")
def undisturbed(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, str]]:
    """(rows, behaviour) -> what each sample gets when nothing happens: key -> digest of its ids. One process finds out."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared

    def run(rows: int, **behaviour: Any) -> dict[str, str]:
        lengths = {k: v for k, v in behaviour.items() if k.endswith("_length")}
        file = shared / f"undisturbed-{'-'.join(map(str, lengths.values()))}.json"
        with file.open("a+") as known:
            fcntl.flock(known, fcntl.LOCK_EX)
            known.seek(0)
            found: dict[str, str] = json.loads(known.read() or "{}")
            if len(found) < rows:
                found = calm(max(rows, MOST_ROWS), lengths)
                known.truncate(0)
                known.write(json.dumps(found))
        return found
    return run


def calm(rows: int, lengths: dict[str, Any]) -> dict[str, str]:
    folder = Path(tempfile.mkdtemp(prefix="draftmill-calm-"))
    folder.chmod(0o755)
    try:
        with Fleet(folder, SEED, QUICK, {**lengths, "tokens_per_s": 2_000}).standing() as fleet:
            fleet.run(rows=rows, in_flight=500)
            assert fleet.rig.process is not None
            assert fleet.rig.process.wait(400) == 0, fleet.rig.tail()
            found = dict(fleet.query(ROWS_OF))
            assert len(found) == rows
            return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def suffers(fleet: Callable[..., Fleet], undisturbed: Callable[..., dict[str, str]]) -> Callable[..., Outcome]:
    """(fault, folder) -> what the checker finds once a run under that fault has ended."""
    def run(fault: Fault, folder: Path | None = None) -> Outcome:
        expected = undisturbed(fault.rows, **fault.behaviour)
        struck = fleet(fault.env, folder, **fault.behaviour)
        struck.run(*fault.arguments, rows=fault.rows, in_flight=fault.in_flight, **fault.plan)
        fault.strike(struck)
        found = struck.ended(expected)
        table.note(fault.name, fault.promise, found)
        return found
    return run


@pytest.fixture
def note() -> Callable[..., None]:
    """Puts a line into the table of results, if `make chaos` asked for one."""
    return table.note


def pytest_sessionstart(session: pytest.Session) -> None:
    """A selection replaces its own lines alone."""
    whole = not session.config.option.keyword and all(Path(argument).is_dir() for argument in session.config.args)
    if whole and not hasattr(session.config, "workerinput"):
        table.clear()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of this is slow; only what is marked quick is part of CI."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.slow)
            if not item.get_closest_marker("quick"):
                item.add_marker(pytest.mark.full)
