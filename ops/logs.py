"""Logging of every process: structlog, JSON where nobody watches, and nothing that looks like a key or a password."""

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO

import structlog

# URLs with passwords, bearer tokens and the usual forms of provider keys, also percent-encoded.
_SECRET = re.compile(
    r"(?P<keep>://[^:/@\s]*:)[^@\s]+(?=@)|(?P<bearer>[Bb]earer(?:\s|%20)+)\S+|\bsk-[A-Za-z0-9_-]{8,}")


def redacted(text: str) -> str:
    return _SECRET.sub(lambda m: (m["keep"] or m["bearer"] or "") + "***", text)


def _redact(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    return {k: redacted(v) if isinstance(v, str) else v for k, v in event.items()}


def configure(level: str = "INFO", stream: TextIO | None = None) -> None:
    """Once per process, before anything is logged. Foreign loggers go through the same formatter."""
    out = stream or sys.stderr
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars, structlog.stdlib.add_log_level, structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True), structlog.processors.format_exc_info]
    renderer: Any = structlog.dev.ConsoleRenderer() if out.isatty() else structlog.processors.JSONRenderer()
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _redact, renderer])
    handler = logging.StreamHandler(out)
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    for noisy in ("httpx", "httpcore", "kombu", "amqp", "tornado.access", "asyncio", "alembic", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, *shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(), cache_logger_on_first_use=True)
