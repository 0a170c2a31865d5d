"""Where plugins send metrics to (entry-point group ``pageport.metrics_sinks``)."""

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pageport.plugins import PluginKind, hookspec, problem_of_classes

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

logger = logging.getLogger(__name__)

# How long a server that ends waits for a sink that is still writing.
CLOSE_TIMEOUT_S = 1.0


class Sample(NamedTuple):
    """One number, as Prometheus would scrape it."""

    name: str
    labels: Mapping[str, str]
    value: float


class MetricsSink(ABC):
    """Receives all samples at an interval, on a thread of its own; made when the server starts.

    What it raises is logged once, and it is asked again the next time.
    """

    name: str
    interval_s: float = 10.0

    @abstractmethod
    def write(self, samples: Iterable[Sample]) -> None:
        """Take the samples of this moment."""

    def close(self) -> None:  # noqa: B027 - a sink may own nothing
        """Give back what it holds, after its last ``write``."""


@hookspec
def pageport_metrics_sinks() -> list[type[MetricsSink]]:
    """Return the sinks this plugin brings."""
    raise NotImplementedError


SINK_PLUGINS = PluginKind[type[MetricsSink]](
    group="pageport.metrics_sinks",
    hook=pageport_metrics_sinks,
    noun="metrics sink",
    problem=problem_of_classes(MetricsSink),
    names=lambda sink: (sink.name,),
)


class SinkWriter:
    """Writes to one sink until it is told to end, and once more then."""

    def __init__(self, sink: type[MetricsSink], registry: "CollectorRegistry") -> None:
        self._kind = sink
        self._registry = registry
        self._ended = threading.Event()
        self._has_complained = False
        self._thread = threading.Thread(target=self._run, name=f"metrics-sink-{sink.name}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Have the sink written to a last time, and closed."""
        self._ended.set()

    def wait(self, timeout_s: float) -> None:
        """Wait until that is done; a sink that hangs is left behind."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            sink = self._kind()
        except Exception:
            logger.exception("The metrics sink %s cannot be opened; it is not used.", self._kind.name)
            return
        while not self._ended.wait(sink.interval_s):
            self._write(sink)
        self._write(sink)
        try:
            sink.close()
        except Exception:
            logger.exception("The metrics sink %s failed to close.", sink.name)

    def _write(self, sink: MetricsSink) -> None:
        try:
            sink.write(samples_of(self._registry))
        except Exception:
            if not self._has_complained:
                logger.exception("The metrics sink %s failed; it is asked again, without more lines here.", sink.name)
            self._has_complained = True


def close_sinks(writers: Sequence[SinkWriter]) -> None:
    """End all of them at once, and wait a little."""
    for writer in writers:
        writer.end()
    deadline = time.monotonic() + CLOSE_TIMEOUT_S
    for writer in writers:
        writer.wait(max(0.0, deadline - time.monotonic()))


def samples_of(registry: "CollectorRegistry") -> list[Sample]:
    """Return every sample of a registry."""
    return [
        Sample(sample.name, sample.labels, sample.value) for family in registry.collect() for sample in family.samples
    ]
