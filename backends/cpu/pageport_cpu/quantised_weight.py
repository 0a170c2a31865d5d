"""``QuantisedWeight``: integers with their scales, in the panels that kernels/panels.h describes."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from pageport.backend.reference.weights import LARGEST_FLOAT16
from pageport.errors import UnsupportedFeature
from pageport_cpu.library import DTYPE_CODES, Arguments, Integer, Library, Pointer, pointer
from pageport_cpu.rows import row_stride
from pageport_cpu.weight_memory import WeightMemory

# Outputs of a panel, and inputs that share a scale of activations.
PANEL_OUTPUTS = 16
GROUP = 32


@dataclass(frozen=True, kw_only=True)
class PanelFormat:
    """How panels of one scheme are laid out; ``code`` is its name in kernels/panels.h."""

    code: int
    record_inputs: int
    record_bytes: int
    header_bytes: int = 0  # in front of a panel's records

    def num_bytes(self, out_features: int, in_features: int) -> int:
        panels = math.ceil(out_features / PANEL_OUTPUTS)
        return panels * (self.header_bytes + math.ceil(in_features / self.record_inputs) * self.record_bytes)


def _planes(bits: int) -> int:
    """Return the bytes of a group's integers, for a panel."""
    return bits * GROUP * PANEL_OUTPUTS // 8


# Float16 scales (and minima) a group, or GGML's two levels of scales for eight groups.
PANEL_FORMATS = {
    "q4_0": PanelFormat(code=0, record_inputs=32, record_bytes=32 + _planes(4)),
    "q4_1": PanelFormat(code=1, record_inputs=32, record_bytes=64 + _planes(4)),
    "q5_0": PanelFormat(code=2, record_inputs=32, record_bytes=32 + _planes(5)),
    "q5_1": PanelFormat(code=3, record_inputs=32, record_bytes=64 + _planes(5)),
    "q8_0": PanelFormat(code=4, record_inputs=32, record_bytes=32 + _planes(8)),
    "q4_k": PanelFormat(code=5, record_inputs=256, record_bytes=64 + 256 + 8 * _planes(4)),
    "q5_k": PanelFormat(code=6, record_inputs=256, record_bytes=64 + 256 + 8 * _planes(5)),
    "q6_k": PanelFormat(code=7, record_inputs=256, record_bytes=32 + 256 + 8 * _planes(6)),
    "int8": PanelFormat(code=8, record_inputs=32, record_bytes=_planes(8), header_bytes=64),
}


class PackBlocksArguments(Arguments):
    kernel = "pack_blocks"
    _fields_ = (
        ("blocks", Pointer),
        ("panels", Pointer),
        ("blocks_stride", Integer),
        ("rows", Integer),
        ("first_row", Integer),
        ("in_features", Integer),
        ("format", Integer),
    )


class QuantiseWeightArguments(Arguments):
    kernel = "quantise_weight"
    _fields_ = (
        ("weight", Pointer),
        ("panels", Pointer),
        ("weight_stride", Integer),
        ("rows", Integer),
        ("first_row", Integer),
        ("in_features", Integer),
        ("format", Integer),
    )


class LinearInt8Arguments(Arguments):
    kernel = "linear_int8"
    _fields_ = (
        ("x", Pointer),
        ("weight", Pointer),
        ("bias", Pointer),
        ("out", Pointer),
        ("rows", Integer),
        ("in_features", Integer),
        ("out_features", Integer),
        ("x_stride", Integer),
        ("out_stride", Integer),
        ("format", Integer),
        ("x_dtype", Integer),
        ("bias_dtype", Integer),
        ("out_dtype", Integer),
        ("gated", Integer),
    )


class EmbedQuantisedArguments(Arguments):
    kernel = "embed_quantised"
    _fields_ = (
        ("weight", Pointer),
        ("token_ids", Pointer),
        ("out", Pointer),
        ("rows", Integer),
        ("in_features", Integer),
        ("out_stride", Integer),
        ("format", Integer),
        ("dtype", Integer),
    )


@dataclass(frozen=True, slots=True)
class QuantisedWeight:
    """A matrix of integers: products quantise their activations to int8, a row and some inputs at a time.

    ``scheme`` is GGML's name of the blocks it came from (32 inputs at a time), or ``int8``: one scale an output (96).
    """

    scheme: str
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
        return self.out_features % (2 * PANEL_OUTPUTS) == 0

    def linear_silu_mul(self, library: Library, x: Tensor, bias: Tensor | None, out: Tensor) -> None:
        """Write ``silu(gate) * up`` of the same product to ``out``, gate being the first half of its columns."""
        assert self.can_gate and 2 * out.shape[1] == self.out_features and len(out) == len(x)
        self._multiply(library, x, bias, out, gated=True)

    def _multiply(self, library: Library, x: Tensor, bias: Tensor | None, out: Tensor, *, gated: bool) -> None:
        assert x.shape[1] == self.in_features
        library.run(
            LinearInt8Arguments(
                pointer(x),
                pointer(self.panels),
                pointer(bias),
                pointer(out),
                len(x),
                self.in_features,
                self.out_features,
                row_stride(x),
                row_stride(out),
                PANEL_FORMATS[self.scheme].code,
                DTYPE_CODES[x.dtype],
                DTYPE_CODES[out.dtype if bias is None else bias.dtype],
                DTYPE_CODES[out.dtype],
                gated,
            )
        )

    def embed(self, library: Library, token_ids: Tensor, out: Tensor) -> None:
        """Write the dequantised rows ``token_ids`` (int64) to ``out``, whose rows may be strided."""
        assert out.shape == (len(token_ids), self.in_features)
        library.run(
            EmbedQuantisedArguments(
                pointer(self.panels),
                pointer(token_ids),
                pointer(out),
                len(token_ids),
                self.in_features,
                row_stride(out),
                PANEL_FORMATS[self.scheme].code,
                DTYPE_CODES[out.dtype],
            )
        )


def pack_blocks(
    library: Library,
    scheme: str,
    slabs: Iterable[Tensor],
    out_features: int,
    in_features: int,
    memory: WeightMemory | None = None,
) -> QuantisedWeight:
    """Pack the rows of a matrix of GGML blocks, some at a time; every value stays what it is.

    Args:
        slabs: rows from the top, uint8 [rows, bytes of a row's blocks].
        memory: where the weight goes; default: memory of its own.
    """
    weight = _empty(scheme, out_features, in_features, memory)
    filled = 0
    for blocks in slabs:
        assert filled + len(blocks) <= out_features
        library.run(
            PackBlocksArguments(
                pointer(blocks),
                pointer(weight.panels),
                row_stride(blocks),
                len(blocks),
                filled,
                in_features,
                PANEL_FORMATS[scheme].code,
            )
        )
        filled += len(blocks)
    assert filled == out_features, f"{filled} rows of {out_features} were given"
    return weight


def quantise(
    library: Library,
    scheme: str,
    slabs: Iterable[Tensor],
    out_features: int,
    in_features: int,
    memory: WeightMemory | None = None,
) -> QuantisedWeight:
    """Round the rows of a matrix, some at a time, to ``int8`` or ``q4_1``.

    Args:
        slabs: rows from the top, in float32, bfloat16 or float16.
        memory: where the weight goes; default: memory of its own.

    Raises:
        UnsupportedFeature: values that 4 bits with float16 scales cannot hold.
    """
    weight = _empty(scheme, out_features, in_features, memory)
    filled = 0
    for slab in slabs:
        rows = slab.float().contiguous()
        assert rows.shape[1] == in_features and filled + len(rows) <= out_features
        if scheme != "int8" and (rows.abs() > LARGEST_FLOAT16).any():
            raise UnsupportedFeature(
                "A weight holds values beyond float16's 65504, which int4 cannot. Use --quantization int8 or none."
            )
        library.run(
            QuantiseWeightArguments(
                pointer(rows),
                pointer(weight.panels),
                row_stride(rows),
                len(rows),
                filled,
                in_features,
                PANEL_FORMATS[scheme].code,
            )
        )
        filled += len(rows)
    assert filled == out_features, f"{filled} rows of {out_features} were given"
    return weight


def _empty(scheme: str, out_features: int, in_features: int, memory: WeightMemory | None) -> QuantisedWeight:
    """Return a matrix of zeros; its outputs beyond the last one stay zeros."""
    num_bytes = PANEL_FORMATS[scheme].num_bytes(out_features, in_features)
    panels = (memory or WeightMemory()).zeros(num_bytes, torch.uint8)
    return QuantisedWeight(scheme, panels, out_features, in_features)
