"""OpenTelemetry, where DRAFTMILL_TRACES_URL names a collector: the extra `otel`. Nothing of it is loaded by us otherwise."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from models import tracing
from models.errors import SettingsError
from models.settings import Settings
from models.tracing import Attribute, Span


def configure(settings: Settings, exporter: Any = None) -> None:
    """Once per process. exporter: for tests, in place of OTLP over HTTP. SettingsError when the extra is missing."""
    if settings.traces_url is None and exporter is None:
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
        from opentelemetry.sdk.trace.sampling import TraceIdRatioBased
    except ImportError:
        raise SettingsError(cause="DRAFTMILL_TRACES_URL needs the extra: pip install 'draftmill[otel]'") from None
    # By the trace's id alone, so that every process of the fleet takes or leaves the same samples.
    provider = TracerProvider(sampler=TraceIdRatioBased(settings.traces_share),
                              resource=Resource.create({"service.name": "draftmill", "service.version": version("draftmill")}))
    provider.add_span_processor(SimpleSpanProcessor(exporter) if exporter is not None
                                else BatchSpanProcessor(OTLPSpanExporter(endpoint=settings.traces_url)))
    tracing.trace_with(_Tracer(provider.get_tracer("draftmill")))


class _Told:
    def __init__(self, span: Any) -> None:
        self._span = span

    def say(self, **attributes: Attribute | None) -> None:
        self._span.set_attributes({f"draftmill.{k}": v for k, v in attributes.items() if v is not None})


class _Tracer:
    def __init__(self, tracer: Any) -> None:
        self._tracer = tracer

    @contextmanager
    def span(self, name: str, trace_id: int | None, attributes: dict[str, Attribute]) -> Iterator[Span]:
        context = _within(trace_id) if trace_id is not None else None
        # An exception's text may hold what an answer holds.
        with self._tracer.start_as_current_span(name, context=context, record_exception=False,
                                                set_status_on_exception=False) as span:
            told = _Told(span)
            told.say(**attributes)
            yield told


def _within(trace_id: int) -> Any:
    """A place in a sample's trace. The span above is nobody's: it only ties together what several processes did."""
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

    top = SpanContext(trace_id, trace_id & (2**64 - 1) or 1, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    return set_span_in_context(NonRecordingSpan(top))
