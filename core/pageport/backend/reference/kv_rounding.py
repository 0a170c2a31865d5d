"""How numbers become those of an 8-bit KV cache, and back."""

from typing import NamedTuple

import torch
from torch import Tensor

LARGEST_INT8 = 127


class ScaledIntegers(NamedTuple):
    """``integers`` int8 [..., size] times ``scale`` float32 [...]."""

    integers: Tensor
    scale: Tensor


def to_float8(values: Tensor, dtype: torch.dtype, scale: Tensor | None) -> Tensor:
    """Divide by ``scale``, round to nearest and saturate; NaN stays NaN."""
    largest = torch.finfo(dtype).max
    values = values.float() if scale is None else values.float() / scale
    return values.clamp(-largest, largest).to(dtype)


def to_int8(values: Tensor) -> ScaledIntegers:
    """Round to 127ths of the largest magnitude along the last axis; one NaN there makes all of it NaN."""
    values = values.float()
    scale = values.abs().amax(-1) / LARGEST_INT8
    steps = values / scale.where(scale != 0, 1).unsqueeze(-1)
    return ScaledIntegers(steps.nan_to_num(0).round().to(torch.int8), scale)
