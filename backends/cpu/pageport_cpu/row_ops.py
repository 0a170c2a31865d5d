"""Sums, products, soft caps and picks of rows of the native device."""

from torch import Tensor

from pageport_cpu.library import DTYPE_CODES, Arguments, Integer, Library, Pointer, Real, pointer
from pageport_cpu.rows import row_stride


class RowOpArguments(Arguments):
    _fields_ = (
        ("x", Pointer),
        ("y", Pointer),
        ("out", Pointer),
        ("rows", Integer),
        ("features", Integer),
        ("x_stride", Integer),
        ("y_stride", Integer),
        ("out_stride", Integer),
        ("dtype", Integer),
        ("factor", Real),
    )


class AddArguments(RowOpArguments):
    kernel = "add"


class ScaleArguments(RowOpArguments):
    kernel = "scale"


class SoftcapArguments(RowOpArguments):
    kernel = "softcap"


class GatherRowsArguments(Arguments):
    kernel = "gather_rows"
    token_counts = ("num_rows",)
    _fields_ = (
        ("x", Pointer),
        ("rows", Pointer),
        ("out", Pointer),
        ("num_rows", Integer),
        ("row_bytes", Integer),
        ("x_stride", Integer),
        ("out_stride", Integer),
    )


def add(library: Library, x: Tensor, y: Tensor, out: Tensor) -> None:
    """Write ``x + y`` to ``out``, which may be either; rows may be strided."""
    _run(library, AddArguments, x, y, 0.0, out)


def scale(library: Library, x: Tensor, factor: float, out: Tensor) -> None:
    """Write ``x * factor`` to ``out``, which may be ``x``."""
    _run(library, ScaleArguments, x, None, factor, out)


def softcap(library: Library, x: Tensor, cap: float, out: Tensor) -> None:
    """Write ``cap * tanh(x / cap)`` to ``out``, which may be ``x``."""
    _run(library, SoftcapArguments, x, None, cap, out)


def gather_rows(library: Library, x: Tensor, rows: Tensor, out: Tensor) -> None:
    """Write ``x[rows]`` to ``out``."""
    size = x.element_size()
    library.run(
        GatherRowsArguments(
            pointer(x),
            pointer(rows),
            pointer(out),
            len(rows),
            x.shape[1] * size,
            row_stride(x) * size,
            row_stride(out) * size,
        )
    )


def _run(library: Library, kind: type[RowOpArguments], x: Tensor, y: Tensor | None, factor: float, out: Tensor) -> None:
    library.run(
        kind(
            pointer(x),
            pointer(y),
            pointer(out),
            *x.shape,
            row_stride(x),
            0 if y is None else row_stride(y),
            row_stride(out),
            DTYPE_CODES[x.dtype],
            factor,
        )
    )
