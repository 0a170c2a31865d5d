"""``Metrics``: what Prometheus scrapes; the engine's counters, and the latencies that clients see."""

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from pageport import __version__
from pageport.engine.async_engine import AsyncEngine
from pageport.engine.messages import FinishReason
from pageport.server import metric_names as names
from pageport.server.metric_names import HistogramName, MetricName
from pageport.server.request_record import RequestRecord

OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Exposition(NamedTuple):
    body: bytes
    content_type: str


class Metrics(Collector):
    """A registry of its own, so that two servers in one process do not meet.

    What vLLM has too is shown a second time by its name there, labelled with the model, so that dashboards made for
    it show this server.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._histograms = {
            name: Histogram(names.OWN_PREFIX + name.own, name.meaning, buckets=name.buckets, registry=None)
            for name in names.HISTOGRAMS
        }
        # Observed at every token.
        self.time_to_first_token = self._histograms[names.TIME_TO_FIRST_TOKEN]
        self.inter_token_latency = self._histograms[names.INTER_TOKEN_LATENCY]
        self._responses = Counter(
            names.OWN_PREFIX + names.HTTP_RESPONSES.own,
            names.HTTP_RESPONSES.meaning,
            ["route", "status"],
            registry=None,
        )
        self.registry = CollectorRegistry()
        self.registry.register(self)
        ProcessCollector(registry=self.registry)

    def observe(self, record: RequestRecord) -> None:
        """Count a request that is over."""
        self._responses.labels(record.route, str(record.status)).inc()
        made = record.generation
        if made is None or not made.is_finished or record.ended is None:
            return
        self._add(names.REQUEST_LATENCY, record.ended - record.started)
        self._add(names.PROMPT_LENGTH, made.num_prompt_tokens)
        self._add(names.GENERATION_LENGTH, made.num_generated_tokens)
        self._add(names.LONGEST_CHOICE, made.longest_choice_tokens)
        self._add(names.NUM_CHOICES, made.num_choices)
        self._add(names.MAX_TOKENS, made.max_tokens)
        if made.queued_s is None or made.first_token_at is None or made.last_token_at is None:
            return
        decode_s = made.last_token_at - made.first_token_at
        prefill_s = max(0.0, made.first_token_at - made.started - made.queued_s)
        self._add(names.QUEUE_TIME, made.queued_s)
        self._add(names.PREFILL_TIME, prefill_s)
        self._add(names.DECODE_TIME, decode_s)
        self._add(names.INFERENCE_TIME, prefill_s + decode_s)
        if made.longest_choice_tokens > 1:
            self._add(names.TIME_PER_OUTPUT_TOKEN, decode_s / (made.longest_choice_tokens - 1))

    def render(self, accept: str) -> Exposition:
        """Write all metrics in the format that the scraper's ``Accept`` header prefers."""
        encode, content_type = choose_encoder(accept)
        if content_type.startswith("application/openmetrics-text"):
            # The encoder that was chosen may write _ for the colons of names, though every version allows those.
            body = openmetrics.generate_latest(self.registry, openmetrics.ALLOWUTF8)  # type: ignore[no-untyped-call]
            return Exposition(body, OPENMETRICS_TYPE)
        return Exposition(encode(self.registry), content_type)

    def collect(self) -> Iterator[Metric]:
        """Yield every metric as it is now, by all its names."""
        for name, metric in self._own_metrics():
            yield metric
            for vllm_name in name.vllm:
                yield self._renamed(metric, names.VLLM_PREFIX + vllm_name)

    def _add(self, name: HistogramName, value: float) -> None:
        self._histograms[name].observe(value)

    def _own_metrics(self) -> Iterator[tuple[MetricName, Metric]]:
        yield from self._engine_metrics()
        for name, histogram in self._histograms.items():
            for metric in histogram.collect():
                yield name, metric
        for metric in self._responses.collect():
            yield names.HTTP_RESPONSES, metric

    def _engine_metrics(self) -> Iterator[tuple[MetricName, Metric]]:
        """Read the engine's latest ``EngineStats``."""
        stats = self._engine.stats
        for name in names.GAUGES:
            yield name, GaugeMetricFamily(names.OWN_PREFIX + name.own, name.meaning, name.read(stats))
        for name in names.COUNTERS:
            yield name, CounterMetricFamily(names.OWN_PREFIX + name.own, name.meaning, name.read(stats))
        waste = GaugeMetricFamily(names.OWN_PREFIX + names.KV_WASTE.own, names.KV_WASTE.meaning, labels=["group"])
        for group, ratio in enumerate(stats.kv_waste_ratio):
            waste.add_metric([str(group)], ratio)
        yield names.KV_WASTE, waste
        finished = CounterMetricFamily(names.OWN_PREFIX + names.FINISHED.own, names.FINISHED.meaning, labels=["reason"])
        # From the start on: the first end of a kind is then seen as an increase.
        for reason in FinishReason:
            finished.add_metric([reason.value], stats.finished_total.get(reason.value, 0))
        yield names.FINISHED, finished
        info = self._engine.info
        served = {
            "version": __version__,
            "model_name": info.model_name,
            "architecture": info.architecture,
            "backend": info.backend,
            "dtype": info.dtype,
        }
        yield names.SERVED, _info(names.SERVED, served)
        cache = {"block_size": str(info.block_size), "num_blocks": str(sum(info.num_blocks))}
        yield names.CACHE, _info(names.CACHE, cache)

    def _renamed(self, metric: Metric, name: str) -> Metric:
        renamed = Metric(name, metric.documentation, metric.type)
        # There may be several engines there; here it is one.
        labels = {"model_name": self._engine.info.model_name, "engine": "0"}
        for sample in metric.samples:
            own = {names.VLLM_LABELS.get(label, label): value for label, value in sample.labels.items()}
            renamed.samples.append(
                sample._replace(name=name + sample.name.removeprefix(metric.name), labels=labels | own)
            )
        return renamed


def _info(name: MetricName, labels: dict[str, str]) -> Metric:
    info = GaugeMetricFamily(names.OWN_PREFIX + name.own, name.meaning, labels=list(labels))
    info.add_metric(list(labels.values()), 1)
    return info
