"""Looking up what calls cost whose reply was lost: OpenRouter's books know every generation by its id.

A reply names its generation in its first header, so that the id outlives the reply. What waits for its bill stands in the
attempts, so that any worker finds it, also after all of them were killed. What the books never tell keeps its estimate.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy.ext.asyncio import AsyncEngine

from models.base import perform
from models.names import cleaned
from models.store import bills
from models.store.bills import Bill, Unbilled
from models.store.datasets import NUSD
from workers.providers.base import Provider
from workers.providers.openrouter import OpenRouter

AT_ONCE = 8
MOST = 5 * AT_ONCE             # in one round
MOST_TOKENS, MOST_USD = 10**9, 10**6

ProviderOf = Callable[[Unbilled], Awaitable[Provider | None]]


async def collect(engine: AsyncEngine, provider_of: ProviderOf) -> int:
    """Ask for the bills that are due and book them; how many were booked. StoreError when the database is away.

    provider_of: the account that made a call, None where this worker does not know it.
    """
    due = await perform(engine, bills.due, MOST)
    room = asyncio.Semaphore(AT_ONCE)

    async def bill(call: Unbilled) -> Bill | None:
        async with room:
            provider = await provider_of(call)
            return read(call, await provider.generation(call.generation_id)) if isinstance(provider, OpenRouter) else None
    known = [found for found in await asyncio.gather(*map(bill, due)) if found is not None]
    return await perform(engine, bills.correct, known) if known else 0


def read(call: Unbilled, data: dict[str, Any]) -> Bill | None:
    """None where the books say nothing (yet) that can be believed."""
    prompt, completion, cost = (data.get(name) for name in ("native_tokens_prompt", "native_tokens_completion", "total_cost"))
    if not isinstance(prompt, int) or not isinstance(completion, int) or not isinstance(cost, int | float):
        return None
    if not (0 <= prompt < MOST_TOKENS and 0 <= completion < MOST_TOKENS and 0 <= cost < MOST_USD):
        return None
    return Bill(call.id, call.fence, prompt, completion, round(cost * NUSD), cleaned(data.get("provider_name") or ""))
