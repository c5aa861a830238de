"""OpenRouter: one account in front of many hosts, so every request says which of them may answer.

Request options and reply shapes: openrouter.ai/docs/api-reference. Reasoning is never excluded: what is hidden cannot be rebuilt.
"""

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any
from urllib.parse import quote

from workers.providers import listing, reading
from workers.providers.base import Ask, Exchange, Limits
from workers.providers.document import load
from workers.providers.http import SIDE_LIMITS, Door, Key
from workers.providers.listing import Listed

# The first call of a model waits for its listing, no later one.
LOOK_AGAIN_S, TRY_AGAIN_S, LOOK_LIMITS = 600.0, 60.0, Limits(total_s=5.0)


class OpenRouter:
    kind = "openrouter"

    def __init__(self, base_url: str, key: Key, max_connections: int) -> None:
        self._door = Door(base_url, key, max_connections)
        self._slugs: dict[str, str] = {}   # display name -> slug, learned from the endpoints
        self._hosts: dict[str, tuple[Listed, ...]] = {}
        self._looks: dict[str, tuple[float, asyncio.Task[None]]] = {}     # model -> when its listing was last asked for

    def __repr__(self) -> str:
        return f"OpenRouter({self._door!r})"

    async def ask(self, ask: Ask) -> Exchange:
        exchange, gather = await self._door.post("/chat/completions", self.body(ask), ask, streamed=ask.stream)
        exchange.dialect = "openrouter"
        return reading.interpreted(exchange, gather, ask)

    def body(self, ask: Ask) -> dict[str, Any]:
        sampling = dict(ask.sampling)
        reasoning = dict(ask.reasoning or {})
        if "reasoning_effort" in sampling:
            reasoning["effort"] = sampling.pop("reasoning_effort")
        if ask.thinking is not None and not reasoning:
            reasoning = {"enabled": ask.thinking}
        reasoning.pop("exclude", None)
        body: dict[str, Any] = {"model": ask.model, "messages": ask.messages, "max_tokens": ask.max_tokens,
                                "stream": ask.stream, **sampling}
        if ask.tools:
            body["tools"] = ask.tools
        if reasoning:
            body["reasoning"] = reasoning
        provider = self._routing(ask)
        if provider:
            body["provider"] = provider
        return body

    def _routing(self, ask: Ask) -> dict[str, Any]:
        routing = dict(ask.routing)
        if ask.ignore:
            routing["ignore"] = sorted({*routing.get("ignore", ()), *map(self.slug, ask.ignore)})
        return routing

    def slug(self, name: str) -> str:
        """The name routing takes for a provider's display name: as its endpoints say, else by the usual spelling."""
        return self._slugs.get(name, name.strip().lower().replace(" ", "-"))

    def stop(self, wanted: Callable[[Ask], bool]) -> int:
        return self._door.stop(wanted)

    async def hosts(self, model: str) -> tuple[Listed, ...]:
        """As `endpoints` said at most ten minutes ago or so; looked up again behind the calls."""
        at, look = self._looks.get(model, (0.0, None))
        if look is None or (look.done() and monotonic() - at > (LOOK_AGAIN_S if self._hosts.get(model) else TRY_AGAIN_S)):
            look = asyncio.create_task(self._look(model))
            self._looks[model] = monotonic(), look
        if model not in self._hosts:
            await asyncio.shield(look)
        return self._hosts.get(model, ())

    async def _look(self, model: str) -> None:
        found = tuple(map(listing.read, await self.endpoints(model, LOOK_LIMITS)))
        self._hosts[model] = found or self._hosts.get(model, ())

    def cancels(self, hosts: Sequence[Listed]) -> bool:
        return bool(hosts) and all(host.cancels for host in hosts)

    async def endpoints(self, model: str, limits: Limits = SIDE_LIMITS) -> list[dict[str, Any]]:
        """One entry per provider and quantization that serves the model, as listed; [] when the listing cannot be read."""
        author, _, slug = model.partition("/")
        data = await self._data(f"/models/{quote(author, safe='')}/{quote(slug, safe=':')}/endpoints", limits)
        found = data.get("endpoints")
        listed = [e for e in found if isinstance(e, dict)] if isinstance(found, list) else []
        for entry in listed:
            name, tag = entry.get("provider_name"), entry.get("tag")
            if isinstance(name, str) and isinstance(tag, str):
                self._slugs[name] = tag.split("/")[0]
        return listed

    async def key(self) -> dict[str, Any]:
        """limit, limit_remaining, usage, ... of the key; {} when it cannot be read."""
        return await self._data("/key")

    async def credits(self) -> dict[str, Any]:
        """total_credits, total_usage in USD; {} when it cannot be read."""
        return await self._data("/credits")

    async def generation(self, generation_id: str) -> dict[str, Any]:
        """native_tokens_*, provider_name, total_cost, cancelled, ... of one call; {} when it is not known (yet)."""
        return await self._data(f"/generation?id={quote(generation_id, safe='')}")

    async def _data(self, path: str, limits: Limits = SIDE_LIMITS) -> dict[str, Any]:
        exchange = await self._door.get(path, limits)
        if exchange.status != 200 or exchange.fault is not None:
            return {}
        try:
            document = load(exchange.body)
        except ValueError:
            return {}
        data = document.get("data") if isinstance(document, dict) else None
        return data if isinstance(data, dict) else {}

    async def aclose(self) -> None:
        looks = [look for _, look in self._looks.values()]
        for look in looks:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)
        await self._door.aclose()
