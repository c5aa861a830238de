"""What OpenRouter's listing says of the hosts of a model, and which of them a plan admits. Pure but for the look-up itself.

Fields: openrouter.ai/docs/api-reference/list-endpoints-for-a-model. What is not listed is None, and excludes nobody but where
the plan demands it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from models.names import cleaned
from models.plan import DatasetPlan, admits

# Hosts at which a stream that is left ends, and its bill with it: openrouter.ai/docs/api-reference/streaming.
CANCELS = frozenset({
    "openai", "azure", "anthropic", "fireworks", "mancer", "recursal", "anyscale", "lepton", "octoai", "novita", "deepinfra",
    "together", "cohere", "hyperbolic", "infermatic", "avian", "xai", "cloudflare", "sfcompute", "nineteen", "liquid", "friendli",
    "chutes", "deepseek"})


@dataclass(frozen=True, slots=True)
class Listed:
    """One host. Prices in dollars a million tokens; uptime in percent of the last half hour; slug: as routing takes it."""

    provider: str
    slug: str
    quantization: str
    prompt_usd: float | None
    completion_usd: float | None
    context: int | None
    max_completion_tokens: int | None
    uptime: float | None
    logprobs: bool
    cancels: bool


def read(entry: Mapping[str, Any]) -> Listed:
    """From one entry of the listing, whatever it lacks."""
    pricing, supported = entry.get("pricing"), entry.get("supported_parameters")
    prices = pricing if isinstance(pricing, dict) else {}
    name, tag = cleaned(entry.get("provider_name") or "?"), cleaned(entry.get("tag") or "")
    slug = tag.split("/")[0] or name.lower().replace(" ", "-")
    return Listed(
        name, slug, cleaned(entry.get("quantization") or "unknown"),
        _price(prices.get("prompt")), _price(prices.get("completion")),
        _count(entry.get("context_length")), _count(entry.get("max_completion_tokens")), _number(entry.get("uptime_last_30m")),
        isinstance(supported, list) and "logprobs" in supported, slug.replace("-", "") in CANCELS)


def refusal(listed: Listed, plan: DatasetPlan) -> str:
    """Why the plan does not admit a host, "" when it does."""
    routing, names = plan.routing, {listed.slug, listed.provider.lower()}
    if routing.only is not None and not names & _lower(routing.only):
        return "not among `only`"
    if routing.ignore is not None and names & _lower(routing.ignore):
        return "among `ignore`"
    if routing.allow_fallbacks is False and routing.order and not names & _lower(routing.order):
        return "not in `order`"
    if routing.quantizations is not None and not admits(routing.quantizations, listed.quantization):
        return f"{listed.quantization} is not among `quantizations`"
    for kind, price in (("prompt", listed.prompt_usd), ("completion", listed.completion_usd)):
        most = (routing.max_price or {}).get(kind)
        if most is not None and price is not None and price > most:
            return f"its {kind} price is above `max_price`"
    return ""


def admitted(hosts: Sequence[Listed], plan: DatasetPlan, ignored: Collection[str] = ()) -> list[Listed]:
    """Those that may be asked. ignored: names or slugs left out beside the plan's own."""
    names = _lower(ignored)
    return [h for h in hosts if not refusal(h, plan) and not names & {h.slug, h.provider.lower()}]


def served(hosts: Sequence[Listed], provider: str, plan: DatasetPlan) -> str:
    """At which precision a reply was served, "" where that cannot be told.

    A host may be listed once for each precision; the router keeps to what the plan admits where it admits one of them.
    """
    name, _, tag = provider.lower().partition("/")
    if tag:
        return tag
    own = [h for h in hosts if name in (h.provider.lower(), h.slug)]
    found = {h.quantization for h in admitted(own, plan) or own}
    return found.pop() if len(found) == 1 else ""


def caution(listed: Listed, plan: DatasetPlan) -> str:
    """What a plan that admits it should know."""
    most = plan.long.max_tokens
    if listed.max_completion_tokens is not None and listed.max_completion_tokens < most:
        return f"cuts answers at {listed.max_completion_tokens:,} tokens, below the long lane's {most:,}"
    return ""


def _lower(names: Collection[str]) -> set[str]:
    return {name.lower() for name in names}


def _number(value: Any) -> float | None:
    try:
        return None if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def _price(value: Any) -> float | None:
    number = _number(value)
    return None if number is None or not 0 <= number < 1 else number * 1e6


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
