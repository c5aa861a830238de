"""What one reply said, in the product's own words: parsed by a provider, judged by the verdict, turned into ids by tokens.

Text is never stripped or normalised here. What was rewritten or looks wrong is named in `flags`.
"""

from dataclasses import dataclass

from models.blob import Ids


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One parsed call. `arguments` is the provider's string, never re-serialised."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Counts as billed, None where the reply did not give a believable one. `cost_usd` is `usage.cost`, never price x tokens."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """The message of one reply.

    content, reasoning: as sent; `reasoning` is None when the reply had no such field.
    reasoning_form: none | field (reasoning, reasoning_content) | details (reasoning.text) | inline (inside content)
                    | hidden (summary or encrypted only: cannot be rebuilt).
    tool_calls: parsed calls; a model's raw tool text stays in `content`.
    finish_reason: stop | length | tool_calls | content_filter | error | abort | "" (none given).
    prompt_ids, completion_ids: int32[n] from an engine, end token included as sampled, else None.
    sampled_text: the engine's text before any parsing, where it gives it (llama.cpp `__verbose.content`).
    token_bytes: the true bytes of each sampled token, from log-probabilities, else None.
    provider, model, quantization: who served it, as named in the reply ("" when not named).
    """

    content: str = ""
    reasoning: str | None = None
    reasoning_form: str = "none"
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str = ""
    native_finish_reason: str = ""
    usage: Usage = Usage()
    prompt_ids: Ids | None = None
    completion_ids: Ids | None = None
    sampled_text: str | None = None
    token_bytes: tuple[bytes, ...] | None = None
    provider: str = ""
    model: str = ""
    quantization: str = ""
    generation_id: str = ""
    flags: frozenset[str] = frozenset()
