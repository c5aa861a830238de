"""The store's own connections, as a worker makes them."""

from collections.abc import AsyncIterator

import pytest

from models.base import connect_async
from tests.hand import Hand


@pytest.fixture
async def store(database: str) -> AsyncIterator[Hand]:
    engine = connect_async(database)
    yield Hand(engine)
    await engine.dispose()
