"""A chat prompt as the engine renders it: Jinja in a sandbox, with the helpers that published templates expect."""

import json
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from models.errors import ProfileError
from models.tokens.declare import declaration
from models.tokens.profile import Profile

Messages = list[dict[str, Any]]


class Refused(TemplateError):
    """What a template says through raise_exception."""


def _raise(message: str) -> None:
    raise Refused(message)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@lru_cache(maxsize=32)
def _compiled(text: str) -> Any:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.filters["declaration"] = declaration
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
    return environment.from_string(text)


def render(profile: Profile, text: str, messages: Messages, tools: list[dict[str, Any]] | None, thinking: bool | None,
           generate: bool = True) -> str:
    """The prompt's text up to and including the generation prompt. ProfileError when the template refuses the messages.

    generate: False renders a whole conversation, as trainers do.
    """
    variables = {profile.template.switch: profile.template.thinking if thinking is None else thinking,
                 "bos_token": profile.bos or "", "eos_token": profile.stop}
    try:
        rendered: str = _compiled(text).render(
            messages=[_message(m) for m in messages], tools=tools or None, add_generation_prompt=generate, **variables)
        return rendered
    except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
        # The error's own text may quote the prompt; only what a template says of itself is safe to repeat.
        said = f": {error}" if isinstance(error, Refused) else ""
        cause = f"its template refuses the prompt ({type(error).__name__}){said}"
        raise ProfileError(profile=profile.name, cause=cause) from None


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """Two spellings of one thing: `reasoning` for `reasoning_content`, and content as one text part for a plain string."""
    message = dict(message)
    if "reasoning" in message and message.get("reasoning_content") is None:
        message["reasoning_content"] = message["reasoning"]
    parts = message.get("content")
    if isinstance(parts, list) and len(parts) == 1 and parts[0].get("type") == "text":
        message["content"] = parts[0]["text"]
    elif parts is None:
        message["content"] = ""
    return message
