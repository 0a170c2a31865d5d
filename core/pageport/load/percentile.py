"""``percentile``: of few values as of many."""

from collections.abc import Iterable


def percentile(values: Iterable[float], share: float) -> float:
    """Return the value below which ``share`` of the values lie; nan of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")
