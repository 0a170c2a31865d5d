"""``Tracing``: one OpenTelemetry span for each request, sent to a collector. Its packages load when it is on."""

import logging
import os
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pageport import __version__
from pageport.errors import ConfigurationError
from pageport.server.config import ServerConfig
from pageport.server.drain import PROBES
from pageport.server.request_record import GenerationRecord, RequestRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import SpanProcessor

logger = logging.getLogger(__name__)

# Where a collector takes traces, by the OTLP specification; a URL with a path of its own is taken as it is.
TRACES_PATH = "/v1/traces"
# https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
# How long a server that ends waits for its last spans to be sent.
CLOSE_TIMEOUT_S = 0.5
# What these log, a collector that is down would have them say over and over; ``tracing_exporter`` says it once.
NOISY_LOGGERS = ("opentelemetry.exporter.otlp", "opentelemetry.sdk._shared_internal")
PACKAGES = {
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http",
}


class Tracing:
    """Makes the span of a request when it is over, from its record, so that nothing is added to requests that run."""

    def __init__(self, processor: "SpanProcessor") -> None:
        """Hand spans to ``processor``. ``OTEL_*`` variables name the service and choose the sampler."""
        from opentelemetry import propagate
        from opentelemetry.sdk.trace import TracerProvider

        self._extract = propagate.extract
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("pageport", __version__)

    def observe(self, record: RequestRecord) -> None:
        """Add the span of a request that is over: a child of the client's, where it sent one."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        if record.ended is None or record.route in PROBES:  # machines ask for those every few seconds
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in record.headers}
        span = self._tracer.start_span(
            _name(record),
            context=self._extract(headers),
            kind=SpanKind.SERVER,
            attributes=dict(_attributes(record)),
            start_time=_unix_ns(record, record.started),
        )
        made = record.generation
        if made is not None:
            for name, moment in _events(made, record.ended):
                span.add_event(name, timestamp=_unix_ns(record, moment))
        if record.status >= 500 or (made is not None and made.error is not None):
            span.set_status(Status(StatusCode.ERROR, made.error if made is not None else None))
        span.end(_unix_ns(record, record.ended))

    def close(self) -> None:
        """Send what is left; a collector that does not answer is not waited for."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True, name="tracing-close")
        closing.start()
        closing.join(CLOSE_TIMEOUT_S)


def require_tracing(config: ServerConfig) -> None:
    """Say now what would be missing later.

    Raises:
        ConfigurationError: traces are asked for, and a package for them is missing.
    """
    if config.otlp_endpoint is None:
        return
    for module, package in PACKAGES.items():
        if not _is_installed(module):
            raise ConfigurationError(
                f"--otlp-endpoint needs the package {package}. Install it with: pip install 'pageport[otel]', or leave "
                "the option out."
            )


def open_tracing(config: ServerConfig) -> Tracing | None:
    """Return what sends traces to the collector of the settings; None: traces are off.

    Raises:
        ConfigurationError: a package is missing.
    """
    require_tracing(config)
    if config.otlp_endpoint is None:
        return None
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from pageport.server.tracing_exporter import TracingExporter

    for name in NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    url = _traces_url(config.otlp_endpoint)
    logger.info("Sending traces to %s", url)
    # Its queue is bounded, and a thread of its own empties it: requests never wait for the collector.
    return Tracing(BatchSpanProcessor(TracingExporter(url)))


def _traces_url(endpoint: str) -> str:
    has_path = urlsplit(endpoint).path.strip("/")
    return endpoint if has_path else endpoint.rstrip("/") + TRACES_PATH


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


def _resource() -> "Resource":
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource

    resource = Resource({SERVICE_VERSION: __version__}).merge(Resource.create())
    is_named = "OTEL_SERVICE_NAME" in os.environ or SERVICE_NAME in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return resource if is_named else resource.merge(Resource({SERVICE_NAME: "pageport"}))


def _unix_ns(record: RequestRecord, moment: float) -> int:
    return int((record.arrived_at + moment - record.started) * 1e9)


def _name(record: RequestRecord) -> str:
    operation = OPERATIONS.get(record.route)
    if record.generation is not None and operation is not None:
        return f"{operation} {record.generation.model}"
    # A path that leads nowhere may be anything.
    return f"{record.method} {record.route}" if record.route != "none" else record.method


def _attributes(record: RequestRecord) -> Iterator[tuple[str, Any]]:
    yield "http.request.method", record.method
    if record.route != "none":
        yield "http.route", record.route
    yield "http.response.status_code", record.status
    yield "pageport.request.id", record.request_id
    if record.status >= 500:
        yield "error.type", str(record.status)
    made = record.generation
    if made is None:
        return
    yield "gen_ai.operation.name", OPERATIONS.get(record.route, record.route)
    yield "gen_ai.provider.name", "pageport"
    yield "gen_ai.request.model", made.model
    yield "gen_ai.response.model", made.model
    yield "gen_ai.response.id", made.response_id
    yield "gen_ai.request.max_tokens", made.max_tokens
    yield "gen_ai.request.temperature", made.temperature
    yield "gen_ai.request.top_p", made.top_p
    if made.seed is not None:
        yield "gen_ai.request.seed", made.seed
    if made.num_choices != 1:
        yield "gen_ai.request.choice.count", made.num_choices
    yield "gen_ai.usage.input_tokens", made.num_prompt_tokens
    yield "gen_ai.usage.output_tokens", made.num_generated_tokens
    if made.num_cached_tokens is not None:
        yield "gen_ai.usage.cache_read.input_tokens", made.num_cached_tokens
    if made.finish_reasons:
        yield "gen_ai.response.finish_reasons", [reason for _, reason in sorted(made.finish_reasons.items())]
    # Not in the conventions; the names are those that vLLM's traces have.
    if made.queued_s is not None:
        yield "gen_ai.latency.time_in_queue", made.queued_s
    if made.first_token_at is not None:
        yield "gen_ai.latency.time_to_first_token", made.first_token_at - record.started
    if record.ended is not None:
        yield "gen_ai.latency.e2e", record.ended - record.started


def _events(made: GenerationRecord, ended: float) -> Iterator[tuple[str, float]]:
    yield "queued", made.started
    if made.queued_s is not None:
        yield "running", made.started + made.queued_s
    if made.first_token_at is not None:
        yield "first token", made.first_token_at
    if made.is_finished:
        yield "finished", made.last_token_at or ended
    else:
        yield "broken off", ended
