"""Traces of a whole run, as a collector receives them."""

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ops.bench.rig import Rig
from ops.simulator.process import Simulator
from tests.flows.job import KEY, account, job


@contextmanager
def collector() -> Iterator[tuple[str, list[bytes]]]:
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1/traces", bodies
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_each_sample_has_one_trace_from_its_hint_to_its_call_and_no_text_in_it(rig: Rig) -> None:
    answers = {"lengths": "uniform", "min_length": 20, "max_length": 40, "tokens_per_s": 200, "profile": "smollm2"}
    with collector() as (url, bodies), Simulator(**answers) as simulator:
        rig.environment["DRAFTMILL_TRACES_URL"] = url
        file = job(rig, {"router": account(simulator.openrouter)}, {"B1": 20}, in_flight=10, long=2)
        code, out = rig.command("run", "--plan", file, "--no-export", timeout_s=100)
        assert code == 0, out
    traces: dict[bytes, list[str]] = defaultdict(list)
    for body in bodies:
        request = ExportTraceServiceRequest.FromString(body)
        for span in (s for r in request.resource_spans for scope in r.scope_spans for s in scope.spans):
            traces[span.trace_id].append(span.name)
    whole = [names for names in traces.values() if {"hint", "sample", "call"} <= set(names)]
    assert len(whole) == 20
    said = b"".join(bodies)
    assert b"Question" not in said
    assert KEY.encode() not in said
