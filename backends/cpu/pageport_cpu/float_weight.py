"""``FloatWeight``: a matrix of float32, bfloat16 or float16, in the panels that kernels/float_weight.h describes."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from pageport.errors import UnsupportedFeature
from pageport_cpu.library import DTYPE_CODES, Arguments, Integer, Library, Pointer, pointer
from pageport_cpu.rows import row_stride
from pageport_cpu.weight_memory import WeightMemory

# Outputs of a panel, at most; with fewer vector lanes it is a part of that.
MOST_PANEL_OUTPUTS = 32


class FloatWeightSizeArguments(Arguments):
    kernel = "float_weight_size"
    _fields_ = (("out_features", Integer), ("in_features", Integer), ("num_values", Pointer))


class PackFloatArguments(Arguments):
    kernel = "pack_float"
    _fields_ = (
        ("rows", Pointer),
        ("weight", Pointer),
        ("num_rows", Integer),
        ("first_row", Integer),
        ("in_features", Integer),
        ("row_stride", Integer),
        ("rows_dtype", Integer),
        ("weight_dtype", Integer),
    )


class LinearFloatArguments(Arguments):
    kernel = "linear_float"
    _fields_ = (
        ("weight", Pointer),
        ("x", Pointer),
        ("bias", Pointer),
        ("out", Pointer),
        ("rows", Integer),
        ("in_features", Integer),
        ("out_features", Integer),
        ("x_stride", Integer),
        ("out_stride", Integer),
        ("weight_dtype", Integer),
        ("x_dtype", Integer),
        ("out_dtype", Integer),
        ("bias_dtype", Integer),
        ("gated", Integer),
    )


class EmbedFloatArguments(Arguments):
    kernel = "embed_float"
    token_counts = ("num_tokens",)
    _fields_ = (
        ("weight", Pointer),
        ("token_ids", Pointer),
        ("out", Pointer),
        ("num_tokens", Integer),
        ("in_features", Integer),
        ("out_stride", Integer),
        ("weight_dtype", Integer),
        ("out_dtype", Integer),
    )


@dataclass(frozen=True, slots=True)
class FloatWeight:
    """A matrix that is kept as it was stored and multiplied in float32."""

    panels: Tensor
    out_features: int
    in_features: int

    @property
    def num_bytes(self) -> int:
        return self.panels.nbytes

    def linear(self, library: Library, x: Tensor, bias: Tensor | None, out: Tensor) -> None:
        """Write ``x · Wᵀ + bias`` to ``out``; rows of both may be strided, and each has its own dtype."""
        assert out.shape == (len(x), self.out_features)
        self._multiply(library, x, bias, out, gated=False)

    @property
    def can_gate(self) -> bool:
        """Do both halves of the outputs fill panels, as ``linear_silu_mul`` wants them to?"""
        return self.out_features % (2 * MOST_PANEL_OUTPUTS) == 0

    def linear_silu_mul(self, library: Library, x: Tensor, bias: Tensor | None, out: Tensor) -> None:
        """Write ``silu(gate) * up`` of the same product to ``out``, gate being the first half of its columns."""
        assert self.can_gate and 2 * out.shape[1] == self.out_features and len(out) == len(x)
        self._multiply(library, x, bias, out, gated=True)

    def _multiply(self, library: Library, x: Tensor, bias: Tensor | None, out: Tensor, *, gated: bool) -> None:
        assert x.shape[1] == self.in_features
        library.run(
            LinearFloatArguments(
                pointer(self.panels),
                pointer(x),
                pointer(bias),
                pointer(out),
                len(x),
                self.in_features,
                self.out_features,
                row_stride(x),
                row_stride(out),
                DTYPE_CODES[self.panels.dtype],
                DTYPE_CODES[x.dtype],
                DTYPE_CODES[out.dtype],
                DTYPE_CODES[out.dtype if bias is None else bias.dtype],
                gated,
            )
        )

    def embed(self, library: Library, token_ids: Tensor, out: Tensor) -> None:
        """Write the rows ``token_ids`` (int64) to ``out``, whose rows may be strided."""
        assert out.shape == (len(token_ids), self.in_features)
        library.run(
            EmbedFloatArguments(
                pointer(self.panels),
                pointer(token_ids),
                pointer(out),
                len(token_ids),
                self.in_features,
                row_stride(out),
                DTYPE_CODES[self.panels.dtype],
                DTYPE_CODES[out.dtype],
            )
        )


def pack_float(
    library: Library,
    slabs: Iterable[Tensor],
    out_features: int,
    in_features: int,
    storage: torch.dtype,
    memory: WeightMemory | None = None,
) -> FloatWeight:
    """Pack the rows of a matrix, some at a time, rounded to ``storage``.

    Args:
        slabs: rows from the top, in float32, bfloat16 or float16.
        memory: where the weight goes; default: memory of its own.

    Raises:
        UnsupportedFeature: values too large for float16.
    """
    weight = FloatWeight(
        (memory or WeightMemory()).zeros(_num_values(library, out_features, in_features), storage),
        out_features,
        in_features,
    )
    filled = 0
    for slab in slabs:
        assert slab.shape[1] == in_features and filled + len(slab) <= out_features
        _check_range(slab, storage)
        library.run(
            PackFloatArguments(
                pointer(slab),
                pointer(weight.panels),
                len(slab),
                filled,
                in_features,
                row_stride(slab),
                DTYPE_CODES[slab.dtype],
                DTYPE_CODES[storage],
            )
        )
        filled += len(slab)
    assert filled == out_features, f"{filled} rows of {out_features} were given"
    return weight


def _num_values(library: Library, out_features: int, in_features: int) -> int:
    num_values = torch.empty(1, dtype=torch.int64)
    library.run(FloatWeightSizeArguments(out_features, in_features, pointer(num_values)))
    return int(num_values)


def _check_range(slab: Tensor, storage: torch.dtype) -> None:
    if storage == torch.float16 and slab.dtype != torch.float16 and not slab.to(storage).isfinite().all():
        raise UnsupportedFeature(
            f"A weight stored as {str(slab.dtype).removeprefix('torch.')} holds values beyond float16's 65504. "
            "Use --dtype bfloat16 or float32."
        )
