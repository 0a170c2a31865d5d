"""The table of kernels: every kind of kernel runs, and shares are of the peaks measured beside it."""

import sys
from collections.abc import Sequence
from itertools import count

import cpu_kernels
import pytest
from roofline import Kind, Peak

PEAKS = [Peak("int8", 1, 900.0, "loop"), Peak("read", 1, 100.0, "loop"), Peak("read", 1, 200.0, "loop")]


def run(monkeypatch: pytest.MonkeyPatch, only: str) -> None:
    reads = count(1)

    def measure_peaks(counts: list[int], *, kinds: Sequence[Kind]) -> list[Peak]:
        """Registers give 900 each time, reads 100 more at every time."""
        return [Peak(kind, counts[0], 100.0 * next(reads) if kind == "read" else 900.0, "loop") for kind in kinds]

    monkeypatch.setattr(cpu_kernels, "measure_peaks", measure_peaks)
    monkeypatch.setattr(cpu_kernels, "READ_BYTES", 2**23)
    monkeypatch.setattr(sys, "argv", ["cpu_kernels.py", "--threads", "1", "--seconds", "0.01", "--only", only])
    cpu_kernels.main()


def test_products_and_attention_are_put_beside_what_bounds_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(monkeypatch, "int8,q4_k,attention")

    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:]]
    many, one = ["int8, 64 rows", "q4_k, 64 rows"], ["int8, 1 row", "q4_k, 1 row"]
    assert [row[0] for row in rows if row[3] == "900"] == many
    # Beside the better of the reads before and after.
    assert [(row[0], row[3]) for row in rows if row[0] in one] == [(one[0], "200"), (one[1], "300")]
    attention = [row[3] for row in rows if row[0].startswith("decode attention over ")]
    assert attention == ["400"] * len(cpu_kernels.KV_DTYPES)
    assert all(float(row[2]) > 0 for row in rows)


def test_a_share_is_that_of_the_best_peak() -> None:
    assert cpu_kernels.Measure("x", 1, 50.0, "read").row(PEAKS) == ["x", "1", "50", "200", "25 %"]


def test_an_unknown_kernel_is_refused_with_those_that_are_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, "q9")
    assert "--only knows f32" in capsys.readouterr().err
