"""Matrices whose rows may lie apart."""

from torch import Tensor


def row_stride(x: Tensor) -> int:
    """Return the elements from one row of a matrix to the next; within a row they must lie side by side."""
    assert x.dim() == 2 and (x.stride(1) == 1 or x.shape[1] <= 1), f"rows with strides {x.stride()} are not supported"
    return x.stride(0)
