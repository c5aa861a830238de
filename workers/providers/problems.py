"""What an error object says. It is not always an object, its code not always a number, and every engine has its own form."""

import json
from collections.abc import Mapping
from typing import Any

from models.names import cleaned
from workers.providers.base import Problem


def mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def name_in(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key)
    return cleaned(value) if isinstance(value, str) else ""


def problem_of(error: Any, document: Mapping[str, Any]) -> Problem:
    """An error object, or whatever stands in its place."""
    if isinstance(error, list):
        error = {"message": json.dumps(error, default=str)[:2_000]}
    if not isinstance(error, dict):
        return Problem("error", message=str(error)[:2_000], provider=name_in(document, "provider"))
    metadata, availability = mapping(error.get("metadata")), mapping(error.get("availability"))
    availability = availability or mapping(metadata.get("availability"))
    codes = [error.get(k) for k in ("code", "http_status", "status")]
    kind = metadata.get("error_type") or error.get("error_type") or error.get("type") or ""
    words = [c for c in codes if isinstance(c, str) and not c.strip().lstrip("-").isdigit()]
    detail = error.get("message") or error.get("detail") or ""
    return Problem(
        "error",
        code=next((c for c in map(_code, codes) if c is not None), None),
        type=" ".join(w.lower() for w in (kind, *words) if isinstance(w, str))[:200],
        message=f"{detail} {metadata.get('raw') or ''}"[:2_000],
        provider=name_in(metadata, "provider_name") or name_in(document, "provider"),
        limit_source=name_in(metadata, "limit_source"),
        availability=name_in(availability, "code"),
        retryable=availability["retryable"] if isinstance(availability.get("retryable"), bool) else None,
        moderated=bool(metadata.get("reasons") or metadata.get("flagged_input")),
        resets="resets_at" in metadata,
        hints=_hints(error, metadata, availability))


def _code(value: Any) -> int | None:
    if isinstance(value, str) and value.strip().isascii() and value.strip().isdigit() and len(value) < 9:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _hints(error: dict[str, Any], metadata: dict[str, Any], availability: dict[str, Any]) -> dict[str, str]:
    hints = {str(k).lower(): str(v) for k, v in mapping(metadata.get("headers")).items() if isinstance(v, str | int | float)}
    for place in (error, metadata, availability):
        for name in ("retry_after", "retry_after_seconds"):
            value = place.get(name)
            if isinstance(value, str | int | float) and not isinstance(value, bool):
                hints["retry_after"] = str(value)
    return hints
