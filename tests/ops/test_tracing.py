"""Spans: nothing where they are off; one trace per sample, whoever writes into it, and no text of anybody where they are on."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from models import tracing
from models.errors import SettingsError
from models.settings import Settings
from ops.tracing import configure


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    configure(Settings(), exporter)
    yield exporter
    tracing.trace_with(None)


def test_off_nothing_is_loaded_and_a_span_is_one_shared_nothing() -> None:
    script = ("import sys\nfrom models import tracing\nfrom models.settings import Settings\nfrom ops.tracing import configure\n"
              "configure(Settings())\n"
              "assert tracing.span('call', fence=1) is tracing.sample_span('sample', 'B1', 7) is tracing.OFF\n"
              "assert not [m for m in sys.modules if m.startswith('opentelemetry')]\n")
    subprocess.run([sys.executable, "-c", script], timeout=60, check=True)


def test_producer_and_worker_write_into_the_trace_of_the_sample(spans: InMemorySpanExporter) -> None:
    tracing.hinted("B1", "short", [7, 8])
    with tracing.sample_span("sample", "B1", 7) as sample:
        with tracing.span("call", account="home", fence=2) as call:
            call.say(status=200, elapsed_s=None)
        sample.say(code="ok")
    found = {s.name: s for s in spans.get_finished_spans() if s.context and s.context.trace_id == tracing.trace_of("B1", 7)}
    assert set(found) == {"hint", "sample", "call"}
    call, sample = found["call"], found["sample"]
    assert call.parent is not None
    assert sample.context is not None
    assert call.parent.span_id == sample.context.span_id
    assert dict(call.attributes or {}) == {"draftmill.account": "home", "draftmill.fence": 2, "draftmill.status": 200}
    assert dict(sample.attributes or {}) == {"draftmill.dataset": "B1", "draftmill.sample": 7, "draftmill.code": "ok"}
    assert len(spans.get_finished_spans()) == 4


def test_an_exceptions_text_is_not_kept(spans: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError), tracing.sample_span("sample", "B1", 7):
        raise ValueError("CANARY")
    [span] = spans.get_finished_spans()
    assert "CANARY" not in span.to_json()


def test_a_share_takes_the_same_samples_in_every_process() -> None:
    taken = []
    for _ in range(2):
        exporter = InMemorySpanExporter()
        configure(Settings(traces_share=0.2), exporter)
        tracing.hinted("B1", "short", range(500))
        tracing.trace_with(None)
        taken.append({s.context.trace_id for s in exporter.get_finished_spans() if s.context})
    assert taken[0] == taken[1]
    assert 50 <= len(taken[0]) <= 150


def test_without_the_extra_the_setting_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(SettingsError, match=r"draftmill\[otel\]"):
        configure(Settings(traces_url="http://127.0.0.1:4318/v1/traces"))
