"""Looking up what calls cost whose reply was lost: OpenRouter's books know every generation by its id.

A reply names its generation in its first header, so that the id outlives the reply. What cannot be found within a few
minutes keeps its estimate; so does what is still open when the worker stops.
"""

import asyncio
from collections import deque
from dataclasses import dataclass
from time import monotonic
from typing import Any

import structlog
from sqlalchemy.ext.asyncio import AsyncEngine

from models.base import perform
from models.errors import StoreError
from models.names import cleaned
from models.store import bills
from models.store.bills import Bill
from models.store.datasets import NUSD
from workers.providers.openrouter import OpenRouter

log = structlog.get_logger()
WAITS_S = (1.0, 5.0, 20.0, 60.0, 180.0)    # a generation that runs on is booked when it ends
MOST = 10_000
AT_ONCE = 4
MOST_TOKENS, MOST_USD = 10**9, 10**6


@dataclass(frozen=True, slots=True)
class Open:
    """A call with an estimate: its attempt, its account, and its generation id."""

    id: int
    fence: int
    provider: OpenRouter
    generation_id: str
    tries: int = 0
    due: float = 0.0


class Bills:
    """The calls of one worker that wait for their bill; the oldest are given up when there are too many."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._open: deque[Open] = deque(maxlen=MOST)

    def expect(self, sample_id: int, fence: int, provider: object, generation_id: str) -> None:
        """Ask for this call's bill soon, where its provider keeps books."""
        if generation_id and isinstance(provider, OpenRouter):
            self._open.append(Open(sample_id, fence, provider, generation_id, 0, monotonic() + WAITS_S[0]))

    @property
    def waiting(self) -> int:
        return len(self._open)

    async def collect(self) -> int:
        """Ask for what is due and book it; how many were booked."""
        due = [o for o in self._open if o.due <= monotonic()]
        for o in due:
            self._open.remove(o)
        booked = 0
        for start in range(0, len(due), AT_ONCE):
            batch = due[start:start + AT_ONCE]
            found = await asyncio.gather(*(o.provider.generation(o.generation_id) for o in batch))
            read_ones = [read(o, data) for o, data in zip(batch, found, strict=True)]
            for o, bill in zip(batch, read_ones, strict=True):
                if bill is None:
                    self._again(o)
            known = [bill for bill in read_ones if bill is not None]
            try:
                booked += await perform(self._engine, bills.correct, known) if known else 0
            except StoreError:
                self._open.extend(batch)
                raise
        return booked

    def _again(self, o: Open) -> None:
        if o.tries + 1 < len(WAITS_S):
            self._open.append(Open(o.id, o.fence, o.provider, o.generation_id, o.tries + 1, monotonic() + WAITS_S[o.tries + 1]))


def read(o: Open, data: dict[str, Any]) -> Bill | None:
    """None where the books say nothing (yet) that can be believed."""
    prompt, completion, cost = (data.get(name) for name in ("native_tokens_prompt", "native_tokens_completion", "total_cost"))
    if not isinstance(prompt, int) or not isinstance(completion, int) or not isinstance(cost, int | float):
        return None
    if not (0 <= prompt < MOST_TOKENS and 0 <= completion < MOST_TOKENS and 0 <= cost < MOST_USD):
        return None
    return Bill(o.id, o.fence, prompt, completion, round(cost * NUSD), cleaned(data.get("provider_name") or ""))
