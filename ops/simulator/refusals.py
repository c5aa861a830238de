"""The bodies of everything that is not an answer."""

import json
import time
from collections.abc import Mapping
from email.utils import formatdate
from typing import Any, NamedTuple

JSON = {"content-type": "application/json"}
HTML = {"content-type": "text/html; charset=UTF-8", "server": "cloudflare"}
WAIT_S = 1.0                  # what the rate-limit kinds ask for where nothing else is said


class Refusal(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes


_MESSAGES: Mapping[str, tuple[str, str]] = {      # kind -> (error_type, message)
    "400": ("invalid_request", "The request cannot be served as it is"),
    "401": ("", "User not found or key disabled"),
    "402_credit": ("payment_required", "This account has no credit left"),
    "402_in_flight": ("in_flight_budget_exhausted", "Requests under way would cost too large a share of the balance"),
    "402_weight": ("weight_exceeds_budget", "This request alone would cost more than may be in flight"),
    "404_model": ("model_not_found", "No model is called so"),
    "403_moderation": ("content_policy_violation", "The prompt was flagged"),
    "408": ("timeout", "The request took too long"),
    "500": ("server", "Something broke"),
    "502": ("provider_unavailable", "The provider sent nothing that could be read"),
    "503": ("provider_overloaded", "No provider can take this now"),
    "504": ("timeout", "The provider took too long"),
    "529": ("provider_overloaded", "The provider is overloaded"),
}
_SOURCES = {"402_credit": "openrouter_credits", "402_weight": "openrouter_credits",
            "402_in_flight": "openrouter_in_flight_budget"}
_PAGES = {
    "429_edge": (429, "error 1015: you are being rate limited"),
    "403_edge": (403, "error 1020: access denied"),
    "404_html": (404, "404: nothing lives here"),
    "524": (524, "524: a timeout occurred"),
    "html": (200, "We will be back soon"),
}


def refusal(kind: str, retry_after_s: float | None = None) -> Refusal:
    """The reply of a kind of `faults.KINDS` that has one of its own."""
    if kind in _PAGES:
        status, text = _PAGES[kind]
        return Refusal(status, HTML, f"<!DOCTYPE html><html><title>{text}</title><body>{text}</body></html>".encode())
    if kind.startswith("429"):
        return _rate_limit(kind, retry_after_s)
    if kind == "404_routing":
        return _json(404, {"code": 404, "message": "No endpoint is left by this routing",
                           "availability": {"code": "constraint_filtered", "retryable": False}})
    error_type, message = _MESSAGES[kind]
    status = int(kind[:3])
    metadata: dict[str, Any] = {"error_type": error_type} if error_type else {}
    if kind in _SOURCES:
        metadata["limit_source"] = _SOURCES[kind]
    error: dict[str, Any] = {"code": status, "message": message, **({"metadata": metadata} if metadata else {})}
    after = retry_after_s if retry_after_s is not None else WAIT_S if kind in ("402_in_flight", "503") else None
    if kind == "503":
        error["availability"] = {"code": "temporarily_unavailable", "retryable": True, "retry_after": after}
    return _json(status, error, {} if after is None else {"retry-after": f"{after:g}"})


def _rate_limit(kind: str, retry_after_s: float | None) -> Refusal:
    after = WAIT_S if retry_after_s is None else retry_after_s
    reset_ms = str(round((time.time() + after) * 1000))
    headers: dict[str, str] = {}
    error: dict[str, Any] = {"code": 429, "message": "Too many requests", "metadata": {"error_type": "rate_limit_exceeded"}}
    match kind:
        case "429_retry_after":
            headers["retry-after"] = f"{after:g}"
        case "429_date":
            headers["retry-after"] = formatdate(time.time() + after, usegmt=True)
        case "429_reset":
            headers |= {"x-ratelimit-limit": "20", "x-ratelimit-remaining": "0", "x-ratelimit-reset": reset_ms}
        case "429_body":
            error["metadata"]["headers"] = {"X-RateLimit-Reset": reset_ms, "X-RateLimit-Remaining": "0"}
        case "429_availability":
            error["availability"] = {"code": "capacity_exhausted", "retryable": True, "retry_after": after}
        case _ if retry_after_s is not None:
            headers["retry-after"] = f"{after:g}"
    return _json(429, error, headers)


def bad_request(message: str, error_type: str = "invalid_request") -> Refusal:
    return _json(400, {"code": 400, "message": message, "metadata": {"error_type": error_type}})


def engine_error(refused: Refusal) -> Refusal:
    """The same in the words of an engine: one flat error object. Pages stay pages."""
    if refused.headers.get("content-type") != "application/json":
        return refused
    error = json.loads(refused.body)["error"]
    flat = {"object": "error", "message": error["message"], "type": "BadRequestError" if refused.status == 400 else "Error",
            "param": None, "code": refused.status}
    return Refusal(refused.status, refused.headers, json.dumps({**flat, "error": flat}).encode())


def _json(status: int, error: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Refusal:
    return Refusal(status, {**JSON, **(headers or {})}, json.dumps({"error": error}).encode())
