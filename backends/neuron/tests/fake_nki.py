"""NKI as its documentation describes it, on numpy arrays: the calls of the kernel, their layouts and their limits.

Each function has the parameters of its page under https://awsdocs-neuron.readthedocs-hosted.com/en/v2.33.0/nki/api/,
read in November 2026, as far as the kernel names them.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

PARTITIONS, STATIONARY_COLUMNS, MOVING_COLUMNS = 128, 128, 512


class NkiTensor:
    """An array in a kind of memory; slices are views of it."""

    def __init__(self, array: np.ndarray, buffer: str) -> None:
        assert buffer == "hbm" or array.shape[0] <= PARTITIONS, f"{array.shape} has more than {PARTITIONS} partitions"
        self.array, self.buffer = array, buffer

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    def __getitem__(self, index: Any) -> "NkiTensor":
        return NkiTensor(self.array[index], self.buffer)

    def ap(
        self, pattern: Sequence[Sequence[int]], offset: int, vector_offset: "NkiTensor", indirect_dim: int
    ) -> "NkiTensor":
        """Gather rows of ``pattern[1][1]`` elements; an index counts in steps of dimension ``indirect_dim``."""
        assert self.buffer == "hbm" and vector_offset.buffer == "sbuf" and vector_offset.dtype == np.int32
        (row_step, num_rows), (step, width) = pattern
        assert num_rows == vector_offset.shape[0] and row_step == self.shape[1]
        stride = int(np.prod(self.shape[indirect_dim + 1 :]))
        starts = vector_offset.array[:, :1] * stride + offset
        assert ((starts >= 0) & (starts < self.array.size)).all(), "an index is out of bounds"
        return NkiTensor(self.array.reshape(-1)[starts + np.arange(width) * step], "hbm")


def ndarray(shape: tuple[int, ...], dtype: Any, buffer: str) -> NkiTensor:
    # Whatever is read before it is written is wrong.
    return NkiTensor(np.full(shape, np.nan if np.dtype(dtype).kind == "f" else -1, dtype), buffer)


def dma_copy(dst: NkiTensor, src: NkiTensor) -> None:
    assert dst.shape == src.shape and dst.dtype == src.dtype
    dst.array[...] = src.array


def tensor_copy(dst: NkiTensor, src: NkiTensor) -> None:
    assert dst.shape == src.shape
    dst.array[...] = src.array


def nc_transpose(dst: NkiTensor, data: NkiTensor) -> None:
    assert dst.buffer == "psum" and data.buffer == "sbuf" and max(data.shape) <= PARTITIONS
    assert dst.dtype == data.dtype
    dst.array[...] = data.array.T


def nc_matmul(dst: NkiTensor, stationary: NkiTensor, moving: NkiTensor) -> None:
    assert (dst.buffer, stationary.buffer, moving.buffer) == ("psum", "sbuf", "sbuf")
    assert stationary.shape[1] <= STATIONARY_COLUMNS and moving.shape[1] <= MOVING_COLUMNS
    assert stationary.dtype == moving.dtype
    dst.array[...] = stationary.array.T @ moving.array


def tensor_tensor(dst: NkiTensor, data1: NkiTensor, data2: NkiTensor, op: Callable[..., Any]) -> None:
    assert data1.shape == data2.shape == dst.shape
    dst.array[...] = op(data1.array, data2.array)


def tensor_scalar(dst: NkiTensor, data: NkiTensor, op0: Callable[..., Any], operand0: NkiTensor) -> None:
    assert operand0.shape == (data.shape[0], 1)
    dst.array[...] = op0(data.array, operand0.array)


def tensor_reduce(dst: NkiTensor, op: Any, data: NkiTensor, axis: int, negate: bool = False) -> None:
    assert axis == len(data.shape) - 1, "only the last axes are reduced, and never partitions"
    dst.array[...] = op.reduce(data.array, axis=axis, keepdims=True) * (-1 if negate else 1)


def activation(dst: NkiTensor, op: Callable[..., Any], data: NkiTensor, bias: NkiTensor) -> None:
    assert bias.shape == (data.shape[0], 1)
    dst.array[...] = op(data.array + bias.array)


def reciprocal(dst: NkiTensor, data: NkiTensor) -> None:
    dst.array[...] = 1 / data.array


def memset(dst: NkiTensor, value: float) -> None:
    dst.array[...] = value


def jit(kernel: Callable[..., NkiTensor]) -> Callable[..., torch.Tensor]:
    """Run a kernel on torch tensors, which lie in device memory."""

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(kernel(*(NkiTensor(tensor.numpy(), "hbm") for tensor in tensors)).array)

    return run


def nki_op(name: str, mutates_args: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Stand for the vendor's decorator, which registers a torch operator of this name."""
    assert "::" in name and not mutates_args
    return lambda function: function


# What imports NKI.
KERNEL = "pageport_neuron.kernels.paged_decode"


@contextmanager
def installed() -> Iterator[None]:
    """Install NKI and its bridge to torch for as long as a test runs."""
    nki, isa, language = ModuleType("nki"), ModuleType("nki.isa"), ModuleType("nki.language")
    bridge = ModuleType("torch_neuronx")
    bridge.nki_op = nki_op
    nki.jit, nki.isa, nki.language = jit, isa, language
    for function in (dma_copy, tensor_copy, nc_transpose, nc_matmul, tensor_tensor, tensor_scalar, tensor_reduce):
        setattr(isa, function.__name__, function)
    isa.activation, isa.reciprocal, isa.memset = activation, reciprocal, memset
    language.ndarray, language.affine_range = ndarray, range
    language.float32, language.int32 = np.float32, np.int32
    language.add, language.multiply, language.maximum, language.exp = np.add, np.multiply, np.maximum, np.exp
    language.sbuf, language.psum, language.shared_hbm = "sbuf", "psum", "hbm"
    modules = {"nki": nki, "nki.isa": isa, "nki.language": language, "torch_neuronx": bridge}
    with pytest.MonkeyPatch.context() as patch:
        for name, module in modules.items():
            patch.setitem(sys.modules, name, module)
        sys.modules.pop(KERNEL, None)
        try:
            yield
        finally:
            sys.modules.pop(KERNEL, None)
