"""``QuantisedMatrix``: integers of 8 or 4 bits with their scales, laid out as one tile of a product reads them.

Inputs are taken 32 at a time (a group), which is how GGML's blocks share a scale. The integers of one group lie side by
side for all outputs, then come those of the next group: a program that multiplies some outputs by one group reads one
contiguous piece of memory, and so it does of the scales. Two groups of 4-bit integers share their bytes, the first in
the low halves: both are 32 inputs deep without moving a bit between threads.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from pageport.backend.reference.weights import LARGEST_FLOAT16
from pageport.errors import UnsupportedFeature
from pageport_triton.rows import num_tiles

GROUP = 32
# GGML's blocks that are kept, and their bytes for a group.
BLOCK_BYTES = {"q8_0": 34, "q4_0": 18, "q4_1": 20}


@dataclass(frozen=True, slots=True)
class QuantisedMatrix:
    """``scale * integer + minimum``; of 4 bits without minima: ``scale * (integer - 8)``.

    ``integers``: int8 [groups, out_features, 32], or uint8 [pairs of groups, out_features, 32]. ``scales`` and
    ``minima``: float16 [groups, out_features], or float32 [out_features]: one scale for all inputs of an output.
    """

    bits: Literal[4, 8]
    integers: Tensor
    scales: Tensor
    minima: Tensor | None
    out_features: int
    in_features: int

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in (self.integers, self.scales, self.minima) if tensor is not None)

    @property
    def num_steps(self) -> int:
        """How many pieces of ``integers`` a product goes through."""
        return len(self.integers)


def pack_blocks(
    scheme: str, slabs: Iterable[Tensor], out_features: int, in_features: int, device: torch.device
) -> QuantisedMatrix:
    """Lay out the rows of a matrix of GGML blocks, some at a time; every value stays what it is.

    Args:
        slabs: rows from the top, uint8 [rows, bytes of a row's blocks].
    """
    has_minima = scheme == "q4_1"
    bits: Literal[4, 8] = 8 if scheme == "q8_0" else 4
    matrix = _empty(bits, True, has_minima, out_features, in_features, device)
    filled = 0
    for slab in slabs:
        blocks = slab.reshape(len(slab), -1, BLOCK_BYTES[scheme])
        rows = slice(filled, filled + len(slab))
        filled = rows.stop
        num_groups = blocks.shape[1]
        first = 4 if has_minima else 2
        matrix.scales[:num_groups, rows] = _half(blocks[:, :, 0:2]).T.to(device)
        if matrix.minima is not None:
            matrix.minima[:num_groups, rows] = _half(blocks[:, :, 2:4]).T.to(device)
        if bits == 8:
            matrix.integers[:, rows] = blocks[:, :, 2:].view(torch.int8).transpose(0, 1).to(device)
        else:
            packed = blocks[:, :, first:].to(device)
            _put_nibbles(matrix, rows, torch.cat((packed & 15, packed >> 4), dim=2))
    assert filled == out_features, f"{filled} rows of {out_features} were given"
    return matrix


def quantise(
    bits: Literal[4, 8], slabs: Iterable[Tensor], out_features: int, in_features: int, device: torch.device
) -> QuantisedMatrix:
    """Round the rows of a matrix, some at a time: to 8 bits with a scale a row, or to 4 with one a group and a minimum.

    Args:
        slabs: rows from the top, in float32, bfloat16 or float16.

    Raises:
        UnsupportedFeature: values that 4 bits with float16 scales cannot hold.
    """
    matrix = _empty(bits, bits == 4, bits == 4, out_features, in_features, device)
    filled = 0
    for slab in slabs:
        values = slab.to(device).float()
        rows = slice(filled, filled + len(slab))
        filled = rows.stop
        if bits == 8:
            _quantise_rows(matrix, rows, values)
        else:
            _quantise_groups(matrix, rows, values)
    assert filled == out_features, f"{filled} rows of {out_features} were given"
    return matrix


def _quantise_rows(matrix: QuantisedMatrix, rows: slice, values: Tensor) -> None:
    scales = values.abs().amax(dim=1) / 127
    steps = values / torch.where(scales > 0, scales, 1.0)[:, None]
    padded = functional.pad(steps.round_(), (0, -values.shape[1] % GROUP))
    matrix.scales[rows] = scales
    matrix.integers[:, rows] = padded.to(torch.int8).view(len(values), -1, GROUP).transpose(0, 1)


def _quantise_groups(matrix: QuantisedMatrix, rows: slice, values: Tensor) -> None:
    if (values.abs() > LARGEST_FLOAT16).any():
        raise UnsupportedFeature(
            "A weight holds values beyond float16's 65504, which int4 cannot. Use --quantization int8 or none."
        )
    # What stands behind the last input is multiplied by 0, and should not widen the last group's range.
    padded = functional.pad(values[None], (0, -values.shape[1] % GROUP), mode="replicate")[0]
    groups = padded.view(len(values), -1, GROUP)
    minima = groups.amin(dim=2).half()
    scales = ((groups.amax(dim=2) - minima.float()) / 15).half()
    divisors = torch.where(scales > 0, scales, 1.0).float()
    integers = ((groups - minima.float()[:, :, None]) / divisors[:, :, None]).round_().clamp_(0, 15)
    assert matrix.minima is not None
    num_groups = groups.shape[1]
    matrix.scales[:num_groups, rows] = scales.T
    matrix.minima[:num_groups, rows] = minima.T
    _put_nibbles(matrix, rows, integers.to(torch.uint8))


def _put_nibbles(matrix: QuantisedMatrix, rows: slice, integers: Tensor) -> None:
    """Store integers [rows, groups, 32] below 16, two groups to a byte."""
    pairs = functional.pad(integers, (0, 0, 0, integers.shape[1] % 2)).view(len(integers), -1, 2, GROUP)
    matrix.integers[:, rows] = (pairs[:, :, 0] | (pairs[:, :, 1] << 4)).transpose(0, 1)


def _empty(
    bits: Literal[4, 8], has_groups: bool, has_minima: bool, out_features: int, in_features: int, device: torch.device
) -> QuantisedMatrix:
    groups = num_tiles(in_features, GROUP)
    steps = groups if bits == 8 else num_tiles(groups, 2)
    dtype = torch.int8 if bits == 8 else torch.uint8
    integers = torch.zeros(steps, out_features, GROUP, dtype=dtype, device=device)
    # Scales of 0 where a pair has no second group.
    padded_groups = steps * (8 // bits)
    shape = (padded_groups, out_features) if has_groups else (out_features,)
    scales = torch.zeros(shape, dtype=torch.float16 if has_groups else torch.float32, device=device)
    minima = torch.zeros_like(scales) if has_minima else None
    return QuantisedMatrix(bits, integers, scales, minima, out_features, in_features)


def _half(two_bytes: Tensor) -> Tensor:
    return two_bytes.contiguous().view(torch.float16)[:, :, 0]
