"""Activations of the native device, alone and multiplied by the other half of the row."""

from torch import Tensor

from pageport_cpu.library import DTYPE_CODES, Arguments, Integer, Library, Pointer, pointer
from pageport_cpu.rows import row_stride


class ActivationArguments(Arguments):
    _fields_ = (
        ("x", Pointer),
        ("out", Pointer),
        ("rows", Integer),
        ("features", Integer),
        ("x_stride", Integer),
        ("out_stride", Integer),
        ("dtype", Integer),
        ("tanh", Integer),
    )


class SiluMulArguments(ActivationArguments):
    kernel = "silu_mul"


class GeluMulArguments(ActivationArguments):
    kernel = "gelu_mul"


class GeluArguments(ActivationArguments):
    kernel = "gelu"


def silu_mul(library: Library, gate_up: Tensor, out: Tensor) -> None:
    """Write ``silu(gate) * up`` to ``out``, gate being the first half of the columns; rows may be strided."""
    _run(library, SiluMulArguments, gate_up, False, out)


def gelu_mul(library: Library, gate_up: Tensor, tanh: bool, out: Tensor) -> None:
    """Write ``gelu(gate) * up`` to ``out``; ``tanh`` picks the approximation."""
    _run(library, GeluMulArguments, gate_up, tanh, out)


def gelu(library: Library, x: Tensor, tanh: bool, out: Tensor) -> None:
    """Write ``gelu(x)`` to ``out``, which may be ``x``."""
    _run(library, GeluArguments, x, tanh, out)


def _run(library: Library, kind: type[ActivationArguments], x: Tensor, tanh: bool, out: Tensor) -> None:
    library.run(kind(pointer(x), pointer(out), *out.shape, row_stride(x), row_stride(out), DTYPE_CODES[x.dtype], tanh))
