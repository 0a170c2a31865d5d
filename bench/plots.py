"""PNG plots of a comparison: throughput and latency against load, decode cost against context. Needs matplotlib."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from table import Result, engines_of


def write_plots(results: Sequence[Result], folder: Path) -> list[Path]:
    """Write ``load.png`` and ``context.png`` for what was measured; return their paths."""
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    if curve_families(results, "load"):
        written.append(_plot_load(results, folder / "load.png"))
    if curve_families(results, "context"):
        written.append(_plot_context(results, folder / "context.png"))
    return written


def curve_families(results: Sequence[Result], family: str) -> list[str]:
    """Return the engines that were measured on a family of workloads."""
    return engines_of([result for result in results if result["workload"].startswith(f"{family}-")])


def curve(results: Sequence[Result], engine: str, family: str, key: str) -> tuple[list[int], list[float]]:
    """Return the numbers behind a family's name and the median of ``key`` at each, in rising order."""
    values: dict[int, list[float]] = {}
    for result in results:
        name, _, number = result["workload"].partition("-")
        if result["engine"] == engine and name == family and key in result:
            values.setdefault(int(number), []).append(float(result[key]))
    numbers = sorted(values)
    return numbers, [statistics.median(values[number]) for number in numbers]


def _plot_load(results: Sequence[Result], path: Path) -> Path:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(15, 4.5))
    panels = (
        ("out_tps", "output tokens/s"),
        ("ttft_p50", "first token, median ms"),
        ("itl_p99", "between tokens, p99 ms"),
    )
    for axis, (key, title) in zip(axes, panels, strict=True):
        for engine in curve_families(results, "load"):
            axis.plot(*curve(results, engine, "load", key), marker="o", label=engine)
        axis.set(xlabel="requests at once", title=title, xscale="log", ylim=(0, None))
        ticks = sorted(
            {n for engine in curve_families(results, "load") for n in curve(results, engine, "load", key)[0]}
        )
        axis.set_xticks(ticks, [str(tick) for tick in ticks])
        axis.minorticks_off()
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize="small")
    return _save(figure, path)


def _plot_context(results: Sequence[Result], path: Path) -> Path:
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(7, 4.5))
    for engine in curve_families(results, "context"):
        contexts, rates = curve(results, engine, "context", "decode_tps")
        axis.plot(contexts, [1e3 / rate for rate in rates], marker="o", label=engine)
    axis.set(xlabel="tokens of context", ylabel="ms a token", title="decode, one request", ylim=(0, None))
    axis.grid(alpha=0.3)
    axis.legend(fontsize="small")
    return _save(figure, path)


def _save(figure: Any, path: Path) -> Path:
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    return path
