"""``TracingExporter``: sends spans by OTLP over HTTP, and says once when nobody takes them."""

import logging
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

logger = logging.getLogger(__name__)


class TracingExporter(SpanExporter):
    """Drops what cannot be sent. ``OTEL_EXPORTER_OTLP_*`` variables set headers, time limits and the like."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._exporter = OTLPSpanExporter(endpoint=url)
        self._is_failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send, from a thread that may wait."""
        result = self._exporter.export(spans)
        is_failing = result is not SpanExportResult.SUCCESS
        if is_failing and not self._is_failing:
            logger.warning("%s takes no traces; they are dropped until it does.", self._url)
        elif self._is_failing and not is_failing:
            logger.info("%s takes traces again.", self._url)
        self._is_failing = is_failing
        return result

    def shutdown(self) -> None:
        """End; an attempt that goes on is given up."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]  # the package leaves it untyped
