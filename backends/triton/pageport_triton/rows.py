"""Rows of features as kernels see them: how far they lie apart, and in tiles of which size they are taken."""

from typing import NamedTuple

import torch
from torch import Tensor

from pageport_triton.op_configurations import OpConfiguration, RowTiles

# A program takes no more features of a row than this, where features do not depend on each other.
LONGEST_BLOCK = 1024


class Tiles(NamedTuple):
    """How a kernel over tiles of rows and features is launched."""

    rows: int
    block: int
    options: dict[str, int]

    def grid(self, num_rows: int, features: int) -> tuple[int, int]:
        """Return the numbers of programs."""
        return num_tiles(num_rows, self.rows), num_tiles(features, self.block)

    @property
    def constants(self) -> dict[str, int]:
        """The tile, as kernels call it."""
        return {"ROWS": self.rows, "BLOCK": self.block}


def whole_row_tiles(features: int, configuration: OpConfiguration) -> Tiles:
    """Return the tiles of a kernel that has whole rows in its registers."""
    return _tiles(next_power(features), configuration.norm_tiles, configuration)


def block_tiles(features: int, configuration: OpConfiguration) -> Tiles:
    """Return the tiles of a kernel that may cut rows into blocks of features."""
    return _tiles(min(LONGEST_BLOCK, next_power(features)), configuration.row_tiles, configuration)


def row_stride(x: Tensor) -> int:
    """Return elements from row to row of a matrix whose features lie side by side."""
    assert x.stride(-1) == 1 or x.shape[-1] <= 1, f"rows with strides {x.stride()} are not supported"
    return x.stride(0)


def target(out: Tensor | None, x: Tensor) -> Tensor:
    """Return ``out``, or a new tensor like ``x`` without gaps."""
    return torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out


def next_power(size: int) -> int:
    """Return the least power of two that is not less than ``size``."""
    return 1 << max(0, size - 1).bit_length()


def num_tiles(size: int, tile: int) -> int:
    """Return how many tiles cover ``size``."""
    return -(-size // tile)


def _tiles(block: int, size: RowTiles, configuration: OpConfiguration) -> Tiles:
    return Tiles(size.rows(block), block, {"num_warps": size.num_warps(block), **configuration.options})
