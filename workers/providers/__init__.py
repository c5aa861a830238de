"""Whatever answers prompts, behind one contract (`base`)."""

from collections.abc import Callable

from models.errors import SettingsError
from workers.providers.base import Provider
from workers.providers.engines import VLLM, LlamaCpp, SGLang
from workers.providers.openrouter import OpenRouter

KINDS: dict[str, type[OpenRouter | SGLang | VLLM | LlamaCpp]] = {
    "openrouter": OpenRouter, "sglang": SGLang, "vllm": VLLM, "llamacpp": LlamaCpp, "embedded": LlamaCpp}


async def connect(kind: str, base_url: str, key: Callable[[], str | None], max_connections: int) -> Provider:
    """A provider ready to be asked, on the running event loop; no connection is made yet.

    key: asked at every call, so that a replaced key file takes effect; it may raise SettingsError, which pauses the account.
    max_connections: how many calls it holds at once. Raises SettingsError for an unknown kind or an unusable URL.
    """
    if kind not in KINDS:
        raise SettingsError(cause=f"there is no provider kind {kind!r}")
    if not base_url.startswith(("http://", "https://")):
        raise SettingsError(cause="base_url must begin with http:// or https://")
    return KINDS[kind](base_url, key, max_connections)
