"""Order the values of rows so that ties have one outcome everywhere: larger first, then lower index first."""

from typing import NamedTuple

import torch
from jaxtyping import Float32, Int64
from torch import Tensor

from pageport.backend.reference.philox import WORD

# Up to here a selection by torch, whose threads share the rows, is the quickest in host memory.
_SELECTION_WIDTH = 256


class Ranked(NamedTuple):
    """The first entries of each row in order; ``indexes`` are columns of what was ranked."""

    values: Float32[Tensor, "rows width"]
    indexes: Int64[Tensor, "rows width"]


def ranked(values: Float32[Tensor, "rows columns"], width: int) -> Ranked:
    """Return the first ``width`` entries of each row."""
    width = min(width, values.shape[1])
    # Elsewhere than in host memory, looking at a value (is there a tie?) means waiting for the device.
    if not values.is_cpu or width > _SELECTION_WIDTH or width == values.shape[1]:
        return _ranked_by_keys(values, width)
    top, indexes = torch.topk(values, width + 1, dim=-1)
    # The order among equals, and which of those at the edge are selected, is not defined.
    is_tied = (top[:, 1:] == top[:, :-1]).any(dim=-1)
    top, indexes = top[:, :width].contiguous(), indexes[:, :width].contiguous()
    if bool(is_tied.any()):
        rows = is_tied.nonzero().squeeze(1)
        top[rows], indexes[rows] = _ranked_by_keys(values[rows], width)
    return Ranked(top, indexes)


def _ranked_by_keys(values: Tensor, width: int) -> Ranked:
    keys = _keys(values)
    if values.is_cpu:
        # numpy partitions and sorts integers several times as fast as torch.
        in_place = keys.numpy()
        if width < values.shape[1]:
            in_place.partition(width - 1, axis=-1)
        in_place[:, :width].sort(axis=-1)
    else:
        keys = keys.sort(dim=-1).values
    indexes = keys[:, :width] & WORD
    return Ranked(values.gather(1, indexes), indexes)


def _keys(values: Tensor) -> Int64[Tensor, "rows columns"]:
    """Return distinct integers whose ascending order is the ranking: the value, negated, above the index."""
    bits = (values + 0.0).view(torch.int32)  # adding 0 makes -0 equal to 0
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # ordered like the floats
    return (bits.long().neg_() << 32).bitwise_or_(torch.arange(values.shape[1], device=values.device))
