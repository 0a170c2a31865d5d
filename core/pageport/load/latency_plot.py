"""``write_plot``: each latency's distribution as a picture."""

from collections.abc import Sequence
from pathlib import Path

from pageport.errors import ConfigurationError
from pageport.load.answer import Answer
from pageport.load.summary import LATENCIES, latencies


def require_matplotlib() -> None:
    """Raise ConfigurationError where plots cannot be drawn: before a run, not after it."""
    try:
        import matplotlib
    except ModuleNotFoundError as error:
        raise ConfigurationError("--plot needs matplotlib. Install it with: pip install matplotlib.") from error
    matplotlib.use("Agg")


def write_plot(answers: Sequence[Answer], path: Path) -> None:
    """Write a PNG: the share of values below each latency.

    Raises:
        ConfigurationError: matplotlib is missing, or the file cannot be written.
    """
    require_matplotlib()
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(LATENCIES), figsize=(4 * len(LATENCIES), 3.5), sharey=True)
    for axis, (name, title) in zip(axes, LATENCIES.items(), strict=True):
        values = sorted(latencies(answers)[name])
        axis.step(values, [(place + 1) / len(values) for place in range(len(values))], where="post")
        axis.set(xlabel="ms", title=title, xlim=(0, None), ylim=(0, 1.02))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("share of values below")
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=120, format="png")
    except OSError as error:
        raise ConfigurationError(f"--plot {path} cannot be written: {error.strerror}.") from error
    finally:
        plt.close(figure)
