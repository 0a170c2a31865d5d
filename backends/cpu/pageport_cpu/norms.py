"""Norms of the native device. Weights and biases are float32 or of the activations' dtype."""

from torch import Tensor

from pageport_cpu.library import DTYPE_CODES, Arguments, Integer, Library, Pointer, Real, pointer
from pageport_cpu.rows import row_stride


class RmsNormArguments(Arguments):
    kernel = "rms_norm"
    token_counts = ("outer",)
    _fields_ = (
        ("x", Pointer),
        ("residual", Pointer),
        ("weight", Pointer),
        ("out", Pointer),
        ("outer", Integer),
        ("inner", Integer),
        ("x_outer_stride", Integer),
        ("x_inner_stride", Integer),
        ("residual_outer_stride", Integer),
        ("residual_inner_stride", Integer),
        ("out_outer_stride", Integer),
        ("out_inner_stride", Integer),
        ("features", Integer),
        ("dtype", Integer),
        ("weight_dtype", Integer),
        ("epsilon", Real),
    )


class LayerNormArguments(Arguments):
    kernel = "layer_norm"
    _fields_ = (
        ("x", Pointer),
        ("weight", Pointer),
        ("bias", Pointer),
        ("out", Pointer),
        ("rows", Integer),
        ("features", Integer),
        ("x_stride", Integer),
        ("out_stride", Integer),
        ("dtype", Integer),
        ("weight_dtype", Integer),
        ("epsilon", Real),
    )


def rms_norm(library: Library, x: Tensor, residual: Tensor | None, weight: Tensor, epsilon: float, out: Tensor) -> None:
    """Write the norm of ``x``, or of ``residual`` after adding ``x`` to it, to ``out``; rows may be strided.

    ``out`` may be ``x``. With three axes the last is normed: the heads of a view.
    """
    outer, inner = (x.shape[0], x.shape[1]) if x.dim() == 3 else (x.shape[0], 1)
    library.run(
        RmsNormArguments(
            pointer(x),
            pointer(residual),
            pointer(weight),
            pointer(out),
            outer,
            inner,
            *_strides(x),
            *((0, 0) if residual is None else _strides(residual)),
            *_strides(out),
            x.shape[-1],
            DTYPE_CODES[x.dtype],
            DTYPE_CODES[weight.dtype],
            epsilon,
        )
    )


def layer_norm(library: Library, x: Tensor, weight: Tensor, bias: Tensor | None, epsilon: float, out: Tensor) -> None:
    """Write the layer norm of each row of ``x`` to ``out``, which may be ``x``; rows may be strided."""
    assert bias is None or bias.dtype == weight.dtype, f"weight is {weight.dtype}, bias {bias.dtype}"
    library.run(
        LayerNormArguments(
            pointer(x),
            pointer(weight),
            pointer(bias),
            pointer(out),
            *x.shape,
            row_stride(x),
            row_stride(out),
            DTYPE_CODES[x.dtype],
            DTYPE_CODES[weight.dtype],
            epsilon,
        )
    )


def _strides(x: Tensor) -> tuple[int, int]:
    """Return elements from row to row: outer, inner."""
    assert x.stride(-1) == 1 or x.shape[-1] <= 1, f"rows with strides {x.stride()} are not supported"
    return (x.stride(0), x.stride(1)) if x.dim() == 3 else (x.stride(0), 0)
