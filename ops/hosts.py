"""`draftmill providers`: who serves a model, at what price and precision, and whom a plan admits."""

import asyncio

from rich.table import Table

from models.errors import SettingsError
from models.plan import Account, DatasetPlan
from models.settings import Settings
from ops.tables import count, dollars
from workers.providers.listing import Listed, caution, read, refusal
from workers.providers.openrouter import OpenRouter


def listed(settings: Settings, name: str, account: Account, model: str) -> list[Listed]:
    """Cheapest first. SettingsError where nothing is listed."""
    def key() -> str | None:
        secret = settings.key_of(name, account)
        return secret.get_secret_value() if secret else None

    async def look() -> list[Listed]:
        provider = OpenRouter(account.base_url, key, 2)
        try:
            return [read(entry) for entry in await provider.endpoints(model)]
        finally:
            await provider.aclose()

    if account.kind != "openrouter":
        raise SettingsError(cause=f"the account {name!r} is an engine of one's own: there is nobody to choose from")
    found = asyncio.run(look())
    if not found:
        raise SettingsError(cause=f"{account.base_url} lists nobody for {model!r}")
    return sorted(found, key=lambda one: (one.completion_usd or 0.0, one.provider))


def table(found: list[Listed], plan: DatasetPlan) -> Table:
    """Prices are dollars a million tokens."""
    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for name in ("provider", "quant", "in", "out", "max out", "up", "logprobs", "cancels", "the plan"):
        shown.add_column(name, justify="right" if name in ("in", "out", "max out", "up") else "left")
    for one in found:
        why = refusal(one, plan)
        shown.add_row(
            one.provider, one.quantization, dollars(one.prompt_usd), dollars(one.completion_usd),
            count(one.max_completion_tokens),
            "-" if one.uptime is None else f"{one.uptime:.0f}%", "yes" if one.logprobs else "-", "yes" if one.cancels else "-",
            f"leaves it out: {why}" if why else f"admits it, but it {c}" if (c := caution(one, plan)) else "admits it")
    return shown
