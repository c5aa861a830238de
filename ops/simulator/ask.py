"""What a client asked for, read from any of the request forms."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

UNLIMITED = 2**31 - 1


class Unreadable(Exception):
    """A request that a provider would answer with 400. The text is the reason."""


class Asked(NamedTuple):
    """`prompt`: the messages, a list of ids or a text. `seed` is the request's own."""

    prompt: Any
    max_tokens: int
    stream: bool
    thinking: bool
    seed: int
    model: str
    sample: str
    body: Mapping[str, Any]


def chat(raw: bytes) -> Asked:
    body = _object(raw)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        raise Unreadable("'messages' must be a list of messages")
    limit = body.get("max_completion_tokens", body.get("max_tokens"))
    return _asked(body, messages, limit, body.get("seed"))


def completion(raw: bytes) -> Asked:
    """vLLM's /v1/completions and llama.cpp's /completion."""
    body = _object(raw)
    return _asked(body, _prompt(body.get("prompt")), body.get("max_tokens", body.get("n_predict")), body.get("seed"))


def generate(raw: bytes) -> Asked:
    """SGLang's /generate, one prompt."""
    body = _object(raw)
    sampling = body.get("sampling_params") or {}
    return _asked(body, _prompt(body.get("input_ids", body.get("text"))), sampling.get("max_new_tokens", 128),
                  sampling.get("sampling_seed"))


def _object(raw: bytes) -> Mapping[str, Any]:
    try:
        body = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"the body is not JSON: {type(error).__name__}") from None
    if not isinstance(body, dict):
        raise Unreadable("the body is not a JSON object")
    return body


def _prompt(value: Any) -> Any:
    if isinstance(value, str) or (isinstance(value, list) and value and all(isinstance(i, int) for i in value)):
        return value
    raise Unreadable("the prompt must be a text or a list of ids")


def _asked(body: Mapping[str, Any], prompt: Any, limit: Any, seed: Any) -> Asked:
    limit = UNLIMITED if limit is None or limit == -1 else limit
    if not isinstance(limit, int) or limit < 1:
        raise Unreadable("max_tokens must be a number above 0")
    metadata = body.get("metadata")
    sample = metadata.get("sample") if isinstance(metadata, dict) else ""
    return Asked(prompt, limit, bool(body.get("stream")), _thinks(body), seed if isinstance(seed, int) else 0,
                 str(body.get("model", "simulated")), str(sample or "")[:128], body)


def _thinks(body: Mapping[str, Any]) -> bool:
    reasoning, template = body.get("reasoning"), body.get("chat_template_kwargs")
    if isinstance(reasoning, dict) and (reasoning.get("enabled") is False or reasoning.get("effort") == "none"):
        return False
    return not (isinstance(template, dict) and False in (template.get("enable_thinking"), template.get("thinking")))
