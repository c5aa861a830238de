"""Spans across producer, worker and provider call, for whoever switches them on (`ops/tracing.py`). Off, they cost a call.

No trace context travels in a hint: the trace of a sample is derived from its name, so that whoever hints at it, claims it or
asks for it writes into the same trace. Attributes are names and numbers; no prompt, answer or key, and no exception's text.
"""

import hashlib
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol, Self

Attribute = str | int | float | bool


class Span(Protocol):
    def say(self, **attributes: Attribute | None) -> None: ...


class Off:
    """The span of a process that does not trace."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    def say(self, **attributes: Attribute | None) -> None:
        pass


class Tracer(Protocol):
    def span(self, name: str, trace_id: int | None, attributes: dict[str, Attribute]) -> AbstractContextManager[Span]: ...


OFF = Off()
_tracer: list[Tracer] = []


def trace_with(tracer: Tracer | None) -> None:
    """Once per process; None switches it off."""
    _tracer[:] = [tracer] if tracer else []


def span(name: str, **attributes: Attribute) -> AbstractContextManager[Span]:
    """Around something that belongs to the span that is open now."""
    return _tracer[0].span(name, None, attributes) if _tracer else OFF


def sample_span(name: str, dataset: str, sample_id: int) -> AbstractContextManager[Span]:
    """Around something that is done for one sample, in the sample's own trace."""
    if not _tracer:
        return OFF
    return _tracer[0].span(name, trace_of(dataset, sample_id), {"dataset": dataset, "sample": sample_id})


def hinted(dataset: str, lane: str, sample_ids: Any) -> None:
    """A hint was sent for each of these."""
    for sample_id in sample_ids if _tracer else ():
        with sample_span("hint", dataset, sample_id) as one:
            one.say(lane=lane)


def trace_of(dataset: str, sample_id: int) -> int:
    """128 bits, never 0."""
    return int.from_bytes(hashlib.blake2b(f"{dataset}:{sample_id}".encode(), digest_size=16).digest(), "big") or 1
