"""Curves from results; the pictures themselves need matplotlib."""

import importlib.util
from pathlib import Path

import plots
import pytest

RESULTS = [
    {"engine": engine, "workload": f"{family}-{n}", "run": run, key: float(n * scale + run)}
    for engine, scale in (("a", 1), ("b", 2))
    for family, keys in (("load", ("out_tps", "ttft_p50", "itl_p99")), ("context", ("decode_tps",)))
    for key in keys
    for n in (32, 1, 8)
    for run in (0, 1, 2)
]


def test_a_curve_is_the_median_at_each_number_in_rising_order() -> None:
    assert plots.curve(RESULTS, "b", "load", "out_tps") == ([1, 8, 32], [3.0, 17.0, 65.0])


def test_engines_without_a_family_have_no_curve() -> None:
    others = [{"engine": "c", "workload": "W1", "run": 0}]
    assert plots.curve_families([*RESULTS, *others], "context") == ["a", "b"]


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is the plots' own requirement")
def test_both_plots_are_written_as_png(tmp_path: Path) -> None:
    written = plots.write_plots(RESULTS, tmp_path)
    assert [path.name for path in written] == ["load.png", "context.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
