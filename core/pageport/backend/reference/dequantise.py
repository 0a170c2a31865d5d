"""GGML's block formats, decoded to float32.

The formats are llama.cpp's (ggml/src/ggml-quants.c, ggml/src/ggml-common.h): a row is a sequence of blocks, and a
block holds scales and the packed integers of 32 or 256 consecutive weights. Products are formed in that code's order,
so that the results have the same bits.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float32, UInt8
from torch import Tensor

from pageport.errors import UnsupportedFeature


class BlockFormat(NamedTuple):
    """One block: ``num_bytes`` bytes that hold ``num_weights`` weights."""

    num_weights: int
    num_bytes: int
    decode: Callable[[Tensor], Tensor]  # uint8 [blocks, num_bytes] -> float32 [blocks, num_weights]


def dequantise(scheme: str, blocks: UInt8[Tensor, "rows bytes_per_row"]) -> Float32[Tensor, "rows in_features"]:
    """Decode whole rows of blocks.

    Raises:
        UnsupportedFeature: ``scheme`` is not a format known here, or a row is not whole blocks.
    """
    layout = block_format(scheme)
    rows, bytes_per_row = blocks.shape
    if bytes_per_row % layout.num_bytes:
        raise UnsupportedFeature(
            f"A {scheme} row of {bytes_per_row} bytes is not whole blocks of {layout.num_bytes}. "
            "The file is damaged or its shape was misread."
        )
    in_features = bytes_per_row // layout.num_bytes * layout.num_weights
    return layout.decode(blocks.reshape(-1, layout.num_bytes)).view(rows, in_features)


def block_format(scheme: str) -> BlockFormat:
    """Return the layout of a scheme's blocks.

    Raises:
        UnsupportedFeature: it is not known here.
    """
    if scheme not in _FORMATS:
        raise UnsupportedFeature(
            f"Stored weight scheme {scheme!r} cannot be dequantised. Known: {', '.join(_FORMATS)}; "
            "convert the model to one of these."
        )
    return _FORMATS[scheme]


def _decode_q4_0(blocks: Tensor) -> Tensor:
    return _half(blocks[:, 0:2]) * (_nibbles(blocks[:, 2:18]).float() - 8)


def _decode_q4_1(blocks: Tensor) -> Tensor:
    return _half(blocks[:, 0:2]) * _nibbles(blocks[:, 4:20]) + _half(blocks[:, 2:4])


def _decode_q5_0(blocks: Tensor) -> Tensor:
    integers = _nibbles(blocks[:, 6:22]) | (_bits(blocks[:, 2:6]) << 4)
    return _half(blocks[:, 0:2]) * (integers.float() - 16)


def _decode_q5_1(blocks: Tensor) -> Tensor:
    integers = _nibbles(blocks[:, 8:24]) | (_bits(blocks[:, 4:8]) << 4)
    return _half(blocks[:, 0:2]) * integers + _half(blocks[:, 2:4])


def _decode_q8_0(blocks: Tensor) -> Tensor:
    return _half(blocks[:, 0:2]) * blocks[:, 2:34].view(torch.int8)


def _decode_q4_k(blocks: Tensor) -> Tensor:
    integers = _nibbles(torch.unflatten(blocks[:, 16:144], 1, (4, 32))).view(-1, 8, 32)
    return _scale_and_shift(blocks, integers)


def _decode_q5_k(blocks: Tensor) -> Tensor:
    low = _nibbles(torch.unflatten(blocks[:, 48:176], 1, (4, 32))).view(-1, 8, 32)
    # Bit s of byte l is the fifth bit of weight l of sub-block s.
    high = (blocks[:, None, 16:48] >> _arange(8, blocks)[:, None]) & 1
    return _scale_and_shift(blocks, low | (high << 4))


def _decode_q6_k(blocks: Tensor) -> Tensor:
    # Halves of 128 weights: 64 bytes with two low nibbles each, 32 bytes with four pairs of high bits each.
    low = _nibbles(torch.unflatten(blocks[:, 0:128], 1, (2, 64))).view(-1, 2, 4, 32)
    high = (torch.unflatten(blocks[:, 128:192], 1, (2, 1, 32)) >> (2 * _arange(4, blocks))[:, None]) & 3
    integers = (low | (high << 4)).float() - 32
    scales = _half(blocks[:, 208:210]) * blocks[:, 192:208].view(torch.int8)
    return (scales[:, :, None] * integers.view(-1, 16, 16)).flatten(1)


def _scale_and_shift(blocks: Tensor, integers: Tensor) -> Tensor:
    """Apply the 6-bit scales and minima of the eight sub-blocks of a Q4_K or Q5_K block."""
    first, second, third = torch.unflatten(blocks[:, 4:16], 1, (3, 4)).unbind(1)
    scales = torch.cat([first & 63, (third & 15) | ((first >> 6) << 4)], dim=1)
    minima = torch.cat([second & 63, (third >> 4) | ((second >> 6) << 4)], dim=1)
    scale = _half(blocks[:, 0:2]) * scales
    shift = _half(blocks[:, 2:4]) * minima
    return (scale[:, :, None] * integers - shift[:, :, None]).flatten(1)


def _nibbles(packed: Tensor) -> Tensor:
    """Return the low nibbles of the last axis, then its high ones."""
    packed = packed.contiguous()
    return torch.cat([packed & 15, packed >> 4], dim=-1)


def _bits(packed: Tensor) -> Tensor:
    """Return every bit, the lowest of the first byte first."""
    return ((packed[:, :, None] >> _arange(8, packed)) & 1).flatten(1)


def _arange(count: int, like: Tensor) -> Tensor:
    return torch.arange(count, dtype=torch.uint8, device=like.device)


def _half(two_bytes: Tensor) -> Tensor:
    return two_bytes.contiguous().view(torch.float16).float()


_FORMATS = {
    "q4_0": BlockFormat(32, 18, _decode_q4_0),
    "q4_1": BlockFormat(32, 20, _decode_q4_1),
    "q5_0": BlockFormat(32, 22, _decode_q5_0),
    "q5_1": BlockFormat(32, 24, _decode_q5_1),
    "q8_0": BlockFormat(32, 34, _decode_q8_0),
    "q4_k": BlockFormat(256, 144, _decode_q4_k),
    "q5_k": BlockFormat(256, 176, _decode_q5_k),
    "q6_k": BlockFormat(256, 210, _decode_q6_k),
}
