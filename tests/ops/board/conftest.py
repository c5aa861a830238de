"""One seeded fleet per module, and Flower over it: one that steers, one that only looks."""

from collections.abc import Callable, Iterator

import pytest

from ops.services import Services
from tests.ops.board import seeded
from tests.ops.board.serving import Board, serving


@pytest.fixture(scope="module")
def fleet(new_database: Callable[[], str]) -> str:
    url = new_database()
    seeded.fill(url)
    return url


@pytest.fixture(scope="module")
def board(fleet: str, services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    seeded.limits(services.redis_url)
    with serving(fleet, services.redis_url, tmp_path_factory.mktemp("flower")) as running:
        yield running


@pytest.fixture(scope="module")
def glass(fleet: str, services: Services, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    """Read-only, and allowed to show prompts."""
    with serving(fleet, services.redis_url, tmp_path_factory.mktemp("glass"), "--read-only", "--show-text") as running:
        yield running


