"""``Metrics``: what Prometheus scrapes; the engine's counters, and the latencies that clients see."""

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pageport.engine.async_engine import AsyncEngine

# Seconds. From one step of a small model to a long queue.
REQUEST_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
TOKEN_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.5)


class Field(NamedTuple):
    """One number of ``EngineStats`` and the metric that shows it."""

    attribute: str
    metric: str
    meaning: str


GAUGES = (
    Field("num_running", "requests_running", "Sequences in the running batch."),
    Field("num_waiting", "requests_waiting", "Sequences that wait to run."),
    Field("kv_blocks_total", "kv_blocks", "Blocks of the KV cache, all groups."),
    Field("kv_blocks_used", "kv_blocks_used", "Blocks that requests hold."),
)
COUNTERS = (
    Field("steps_total", "steps", "Engine steps."),
    Field("prompt_tokens_total", "prompt_tokens", "Prompt tokens of admitted requests, each prompt counted once."),
    Field("computed_tokens_total", "computed_tokens", "Tokens that went through the model, recomputation included."),
    Field("generation_tokens_total", "generation_tokens", "Tokens generated."),
    Field("prefix_query_tokens_total", "prefix_query_tokens", "Prompt tokens looked up in the prefix cache."),
    Field("prefix_hit_tokens_total", "prefix_hit_tokens", "Prompt tokens found in the prefix cache."),
    Field("preemptions_total", "preemptions", "Times a running sequence lost its place."),
    Field("swapped_out_blocks_total", "swapped_out_blocks", "Blocks moved to host memory."),
    Field("copied_blocks_total", "copied_blocks", "Blocks copied on write."),
)


class EngineCollector(Collector):
    """Reads the engine's latest ``EngineStats`` at every scrape."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats
        for field in GAUGES:
            yield GaugeMetricFamily(f"pageport:{field.metric}", field.meaning, getattr(stats, field.attribute))
        for field in COUNTERS:
            yield CounterMetricFamily(f"pageport:{field.metric}", field.meaning, getattr(stats, field.attribute))
        waste = GaugeMetricFamily(
            "pageport:kv_waste_ratio",
            "Share of allocated KV slots that hold no token, mean over steps.",
            labels=["group"],
        )
        for group, ratio in enumerate(stats.kv_waste_ratio):
            waste.add_metric([str(group)], ratio)
        yield waste
        finished = CounterMetricFamily(
            "pageport:requests_finished", "Choices that ended, by reason.", labels=["reason"]
        )
        for reason, count in stats.finished_total.items():
            finished.add_metric([reason], count)
        yield finished


class Exposition(NamedTuple):
    body: bytes
    content_type: str


class Metrics:
    """A registry of its own, so that two servers in one process do not meet."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(EngineCollector(engine))
        ProcessCollector(registry=self.registry)
        self.time_to_first_token = Histogram(
            "pageport:time_to_first_token_seconds",
            "From the parsed request to a choice's first token.",
            buckets=REQUEST_BUCKETS,
            registry=self.registry,
        )
        self.inter_token_latency = Histogram(
            "pageport:inter_token_latency_seconds",
            "Between two tokens of a choice; tokens that arrive together share the time.",
            buckets=TOKEN_BUCKETS,
            registry=self.registry,
        )
        self.request_latency = Histogram(
            "pageport:e2e_request_latency_seconds",
            "From the parsed request to its last token, of requests that were not broken off.",
            buckets=REQUEST_BUCKETS,
            registry=self.registry,
        )
        self.responses = Counter(
            "pageport:http_responses",
            "Answers by route and status; refused requests are counted here only.",
            ["route", "status"],
            registry=self.registry,
        )

    def render(self, accept: str) -> Exposition:
        """Write all metrics in the format that the scraper's ``Accept`` header prefers."""
        encode, content_type = choose_encoder(accept)
        return Exposition(encode(self.registry), content_type)


class CountResponses:
    """ASGI middleware that counts every answer, also those that other middleware gives."""

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def count(message: Message) -> None:
            if message["type"] == "http.response.start":
                # The route's pattern, not the path: clients must not be able to make series.
                route = getattr(scope.get("route"), "path", "none")
                self._metrics.responses.labels(route, str(message["status"])).inc()
            await send(message)

        await self._app(scope, receive, count)
