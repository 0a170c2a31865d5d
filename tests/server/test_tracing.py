"""OpenTelemetry: what a request's span holds, and that nothing about it can hurt requests."""

import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import pairwise
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from pageport.engine.messages import EngineRequest
from pageport.errors import ConfigurationError
from pageport.server import app as app_module
from pageport.server import tracing
from pageport.server.config import ServerConfig
from pageport.server.service import service_of_app
from pageport.server.tracing import Tracing, open_tracing

from .conftest import ScriptedEngine, app_for, ask

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT_ID = "00f067aa0ba902b7"
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0, "seed": 5}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": {"input": "hi"},
    "/v1/completions": {"prompt": "hi"},
    "/v1/embeddings": {"input": "hi"},
}


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traced(exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_module, "open_tracing", lambda config: Tracing(SimpleSpanProcessor(exporter)))


def span_of(exporter: InMemorySpanExporter) -> ReadableSpan:
    (span,) = exporter.get_finished_spans()
    return span


class QueueingEngine(ScriptedEngine):
    def _script(self, request: EngineRequest) -> Any:
        for step, deltas in enumerate(super()._script(request)):
            deltas[0].queued_s = 0.0 if step == 0 else None
            yield deltas


@pytest.mark.usefixtures("traced")
def test_a_chat_s_span_says_what_the_conventions_name(exporter: InMemorySpanExporter) -> None:
    answer = ask(app_for(QueueingEngine()), "POST", "/v1/chat/completions", json=CHAT).json()
    span = span_of(exporter)
    expected = {
        "http.request.method": "POST", "http.route": "/v1/chat/completions", "http.response.status_code": 200,
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "pageport", "gen_ai.request.model": "org/tiny",
        "gen_ai.response.model": "org/tiny", "gen_ai.response.id": answer["id"], "gen_ai.request.max_tokens": 4,
        "gen_ai.request.temperature": 0, "gen_ai.request.top_p": 1, "gen_ai.request.seed": 5,
        "gen_ai.usage.input_tokens": answer["usage"]["prompt_tokens"], "gen_ai.usage.output_tokens": 4,
        "gen_ai.usage.cache_read.input_tokens": 0, "gen_ai.response.finish_reasons": ("length",),
    }  # fmt: skip
    assert span.attributes is not None
    assert {name: span.attributes.get(name) for name in expected} == expected
    assert (span.name, span.kind, span.status.status_code) == ("chat org/tiny", SpanKind.SERVER, StatusCode.UNSET)
    assert span.resource.attributes["service.name"] == "pageport"


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("stream", [False, True])
def test_events_come_in_the_order_in_which_they_happened(exporter: InMemorySpanExporter, stream: bool) -> None:
    before = time.time_ns()
    ask(app_for(QueueingEngine()), "POST", "/v1/completions", json={"prompt": "a", "stream": stream})
    span = span_of(exporter)
    assert [event.name for event in span.events] == ["queued", "running", "first token", "finished"]
    moments = [before, span.start_time, *(event.timestamp for event in span.events), span.end_time, time.time_ns()]
    # The wall clock and the one that measures are read one after the other.
    assert all(later - earlier > -1_000_000 for earlier, later in pairwise(moments))


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(
    ("given", "is_continued"),
    [(f"00-{TRACE_ID}-{PARENT_ID}-01", True), (f"00-{TRACE_ID}-{PARENT_ID}", False), ("nonsense", False), ("", False)],
)
def test_a_client_s_trace_is_continued(exporter: InMemorySpanExporter, given: str, is_continued: bool) -> None:
    headers = {"traceparent": given}
    ask(app_for(ScriptedEngine()), "POST", "/v1/completions", json={"prompt": "a"}, headers=headers)
    span = span_of(exporter)
    assert span.context is not None
    assert (f"{span.context.trace_id:032x}" == TRACE_ID) is is_continued
    assert (span.parent is not None and f"{span.parent.span_id:016x}" == PARENT_ID) is is_continued


@pytest.mark.usefixtures("traced")
def test_a_client_that_samples_nothing_gets_no_span(exporter: InMemorySpanExporter) -> None:
    headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-00"}
    ask(app_for(ScriptedEngine()), "POST", "/v1/completions", json={"prompt": "a"}, headers=headers)
    assert exporter.get_finished_spans() == ()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(
    ("method", "path", "name", "status"),
    [("POST", "/v1/completions", "POST /v1/completions", 400), ("GET", "/v1/models", "GET /v1/models", 200),
     ("GET", "/secret/4711", "GET", 404), ("GET", "/v1/models/x", "GET /v1/models/{model_id:path}", 404)],
)  # fmt: skip
def test_what_generates_nothing_is_named_by_its_route(
    exporter: InMemorySpanExporter, method: str, path: str, name: str, status: int
) -> None:
    ask(app_for(ScriptedEngine()), method, path)
    span = span_of(exporter)
    assert span.attributes is not None
    assert (span.name, span.attributes["http.response.status_code"]) == (name, status)
    assert not [attribute for attribute in span.attributes if attribute.startswith("gen_ai")]
    assert span.status.status_code is StatusCode.UNSET


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("path", ["/health", "/ready", "/metrics"])
def test_probes_are_not_traced(exporter: InMemorySpanExporter, path: str) -> None:
    ask(app_for(ScriptedEngine()), "GET", path)
    assert exporter.get_finished_spans() == ()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_a_failure_is_seen(exporter: InMemorySpanExporter, path: str, stream: bool) -> None:
    ask(app_for(ScriptedEngine(fail_after=0)), "POST", path, json=BODIES[path] | {"stream": stream})
    span = span_of(exporter)
    assert span.status.status_code is StatusCode.ERROR
    assert "signal 9" in (span.status.description or "")
    assert span.events[-1].name == "broken off"


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("path", BODIES)
def test_no_text_and_no_key_is_traced(exporter: InMemorySpanExporter, path: str) -> None:
    body = {**BODIES[path], "user": "xyzzy"}
    for field in ("prompt", "input"):
        if field in body:
            body[field] = "xyzzy"
    app = app_for(ScriptedEngine("plugh"), api_key=("topsecret",))
    ask(app, "POST", path, json=body, headers={"authorization": "Bearer topsecret"})
    assert not [word for word in ("xyzzy", "plugh", "topsecret") if word in span_of(exporter).to_json()]


class Collector:
    """Takes traces on a free port; ``status`` is what it answers."""

    def __init__(self) -> None:
        self.status = 200
        self.spans: list[Any] = []
        self.paths: list[str] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.paths.append(self.path)
                if collector.status == 200:
                    request = ExportTraceServiceRequest.FromString(body)
                    collector.spans += [s for r in request.resource_spans for c in r.scope_spans for s in c.spans]
                self.send_response(collector.status)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:
                pass

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
    collector = Collector()
    yield collector
    collector.close()


@pytest.mark.parametrize(("path", "asked"), [("", "/v1/traces"), ("/", "/v1/traces"), ("/own/path", "/own/path")])
def test_spans_reach_a_collector_when_the_server_ends(collector: Collector, path: str, asked: str) -> None:
    app = app_for(ScriptedEngine(), otlp_endpoint=collector.url + path)
    ask(app, "POST", "/v1/completions", json={"prompt": "a"})
    service_of_app(app).close()
    assert collector.paths == [asked]
    assert [span.name for span in collector.spans] == ["text_completion org/tiny"]


def test_a_collector_that_is_down_is_told_of_once_and_slows_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # nobody listens there
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "1")
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "2")
        monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "1")
        app = app_for(ScriptedEngine(), otlp_endpoint=f"http://127.0.0.1:{unused.getsockname()[1]}")
        with caplog.at_level(logging.INFO):
            started = time.monotonic()
            answers = [ask(app, "POST", "/v1/completions", json={"prompt": "a"}) for _ in range(20)]
            service_of_app(app).close()
            elapsed_s = time.monotonic() - started
    assert {answer.status_code for answer in answers} == {200}
    # An attempt to send goes on for ten seconds.
    assert elapsed_s < 8
    assert not [record for record in caplog.records if record.name.startswith("opentelemetry")]


def test_a_collector_that_refuses_is_told_of_once_and_again_when_it_takes(
    collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    from pageport.server.tracing_exporter import TracingExporter

    exporter = TracingExporter(collector.url)
    with caplog.at_level(logging.INFO, "pageport.server.tracing_exporter"):
        for collector.status in (400, 400, 200, 200):
            exporter.export([])
    messages = [record.getMessage() for record in caplog.records if record.name == "pageport.server.tracing_exporter"]
    assert [message.partition(" ")[2] for message in messages] == [
        "takes no traces; they are dropped until it does.",
        "takes traces again.",
    ]


def test_the_standard_variables_name_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    for variables, name in (({}, "pageport"), ({"OTEL_SERVICE_NAME": "mine"}, "mine"),
                            ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=ours,a=b"}, "ours")):  # fmt: skip
        with monkeypatch.context() as patch:
            for variable, value in variables.items():
                patch.setenv(variable, value)
            assert tracing._resource().attributes["service.name"] == name


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    with pytest.raises(ConfigurationError, match=r"opentelemetry-exporter-otlp-proto-http.*pageport\[otel\]"):
        open_tracing(ServerConfig(otlp_endpoint="http://localhost:4318"))
    assert open_tracing(ServerConfig()) is None


@pytest.mark.parametrize("endpoint", ["", "localhost:4318", "grpc://localhost"])
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigurationError, match="otlp-endpoint"):
        ServerConfig(otlp_endpoint=endpoint)


def test_nothing_is_imported_while_traces_are_off() -> None:
    code = (
        "import sys, pageport.server.app, pageport.server.run, pageport.server.tracing as tracing\n"
        "from pageport.server.config import ServerConfig\n"
        "assert tracing.open_tracing(ServerConfig()) is None\n"
        # What FastAPI imports itself, is there anyway.
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
