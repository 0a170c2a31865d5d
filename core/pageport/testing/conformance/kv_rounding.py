"""What the dtype of a KV cache makes of numbers, in float64 and from the formats' definitions."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pageport.testing.conformance.oracle import Floats, as_floats

LARGEST_INT8 = 127


class Float8(NamedTuple):
    """An 8-bit float (arXiv:2209.05433): magnitudes below 2 ** ``lowest_exponent`` have the steps of those above."""

    mantissa_bits: int
    lowest_exponent: int
    largest: float


FLOAT8 = {"float8_e4m3fn": Float8(3, -6, 448.0), "float8_e5m2": Float8(2, -14, 57344.0)}
# Dtypes that a device need not compute in, and whose rounding shows.
EIGHT_BITS = (*FLOAT8, "int8")


def steps(values: Floats, dtype: str) -> Floats:
    """Return how far apart the numbers are that ``dtype`` has around each of ``values`` [..., size]."""
    magnitudes = np.abs(values)
    if dtype == "int8":
        step: Floats = np.broadcast_to(magnitudes.max(axis=-1, keepdims=True) / LARGEST_INT8, values.shape)
    elif dtype in FLOAT8:
        bits, lowest, largest = FLOAT8[dtype]
        exponents = np.floor(np.log2(np.clip(magnitudes, 2.0**lowest, largest)))
        step = 2.0 ** (exponents - bits)
    else:
        info = torch.finfo(getattr(torch, dtype))
        step = np.maximum(magnitudes * info.eps, info.smallest_normal * info.eps)
    return step


def kept(values: Tensor, dtype: str, scale: float = 1.0) -> Floats:
    """Return ``values`` [..., size] as a cache of this dtype keeps them, over ``scale`` and back."""
    if dtype not in EIGHT_BITS:
        return as_floats(values.to(getattr(torch, dtype)))
    exact = as_floats(values) / scale
    return _rounded(_limited(exact, dtype) if dtype in FLOAT8 else exact, dtype) * scale


def kept_rotated(keys: Tensor, dtype: str, scale: float = 1.0) -> Floats:
    """Return ``keys`` as ``kept`` does, for a device that rotates them before it rounds them to an 8-bit float."""
    shares = rotated(_limited(as_floats(keys) / scale, dtype)) / rotated_features(keys.shape[-1])
    return rotated(_rounded(shares, dtype)) * scale


def rotated(values: Floats) -> Floats:
    """Return ``values`` [..., head_size] times the matrix that ``KVSpec`` describes.

    What is rotated twice comes back, times the number of features that are rotated together.
    """
    *outer, head_size = values.shape
    matrix = np.ones((1, 1))
    while len(matrix) < rotated_features(head_size):
        matrix = np.kron(matrix, np.array([[1.0, 1.0], [1.0, -1.0]]))
    turned: Floats = values.reshape(*outer, head_size // len(matrix), len(matrix)) @ matrix
    return turned.reshape(values.shape)


def rotated_features(head_size: int) -> int:
    """Return how many features in a row are rotated together: the largest power of two that divides them."""
    return head_size & -head_size


def rotation_of_keys(dtype: str) -> str:
    """Return the feature that says that a device rotates keys of caches in ``dtype``."""
    return f"rotated_keys:{dtype}"


def _limited(values: Floats, dtype: str) -> Floats:
    return np.clip(values, -FLOAT8[dtype].largest, FLOAT8[dtype].largest)


def _rounded(values: Floats, dtype: str) -> Floats:
    step = steps(values, dtype)
    rounded: Floats = np.rint(np.divide(values, step, out=np.zeros_like(values), where=step != 0)) * step
    return rounded
