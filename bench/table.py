"""The comparison as Markdown: medians of every engine, and how far ahead of each ours is."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meter import DISTURBED_CORES

Result = Mapping[str, Any]
NOTHING = "–"


@dataclass(frozen=True)
class Metric:
    """One column."""

    workload: str
    key: str
    title: str
    more_is_better: bool

    def median(self, results: Sequence[Result], engine: str) -> float | None:
        values = [float(r[self.key]) for r in self.of(results, engine)]
        return statistics.median(values) if values else None

    def of(self, results: Sequence[Result], engine: str) -> list[Result]:
        return [r for r in results if r["engine"] == engine and r["workload"] == self.workload and self.key in r]

    def lead(self, ours: float, theirs: float) -> float:
        """How many times better ours is: above 1 we are ahead, whichever way the metric counts."""
        better, worse = (ours, theirs) if self.more_is_better else (theirs, ours)
        return better / worse if worse else float("inf")


METRICS: Sequence[Metric] = (
    Metric("W1", "ttft_ms", "W1 first token ms", False),
    Metric("W1", "decode_tps", "W1 decode tok/s", True),
    Metric("W2", "out_tps", "W2 output tok/s", True),
    Metric("W3", "out_tps", "W3 output tok/s", True),
    Metric("W4", "out_tps", "W4 output tok/s", True),
    Metric("W4", "itl_p99", "W4 p99 between tokens ms", False),
    Metric("cold", "cold_start_s", "cold start s", False),
    Metric("cold", "net_rss_mb", "cold start MB", False),
)


def comparison_table(results: Sequence[Result], ours: str) -> str:
    """Return one row for each engine: medians, and behind each in brackets how many times better ``ours`` is.

    A figure of which a run stayed disturbed by others is marked with a star.
    """
    metrics = [m for m in METRICS if any(m.of(results, engine) for engine in engines_of(results))]
    rows = [["engine", *(metric.title for metric in metrics)]]
    for engine in engines_of(results):
        rows.append([engine, *(_cell(metric, results, engine, ours) for metric in metrics)])
    return markdown(rows)


def best_peer_table(results: Sequence[Result], ours: str, our_peer: str) -> str:
    """Return one row for each metric: our median, the best peer's, and the lead."""
    rows = [["metric", ours, "best peer", "its figure", "lead"]]
    for metric in METRICS:
        our_figure = metric.median(results, ours)
        medians = {e: metric.median(results, e) for e in engines_of(results) if not e.startswith(our_peer)}
        theirs = {engine: value for engine, value in medians.items() if value is not None}
        if our_figure is None or not theirs:
            continue
        best = (max if metric.more_is_better else min)(theirs, key=lambda engine: theirs[engine])
        lead = metric.lead(our_figure, theirs[best])
        rows.append([metric.title, _figure(our_figure), best, _figure(theirs[best]), f"{lead:.2f}×"])
    return markdown(rows)


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Write rows as a table; the first is its head."""
    head, *body = ("| " + " | ".join(row) + " |" for row in rows)
    return "\n".join([head, "|" + " --- |" * len(rows[0]), *body])


def engines_of(results: Sequence[Result]) -> list[str]:
    """Return the engines in the order in which they first appear."""
    return list(dict.fromkeys(str(result["engine"]) for result in results))


def is_disturbed(result: Result) -> bool:
    return float(result.get("other_cores", 0)) + float(result.get("steal_cores", 0)) > DISTURBED_CORES


def _cell(metric: Metric, results: Sequence[Result], engine: str, ours: str) -> str:
    value = metric.median(results, engine)
    if value is None:
        return NOTHING
    star = "*" if any(is_disturbed(result) for result in metric.of(results, engine)) else ""
    reference = metric.median(results, ours)
    lead = f" ({metric.lead(reference, value):.2f}×)" if reference is not None and engine != ours else ""
    return f"{_figure(value)}{star}{lead}"


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"
