"""Between torch tensors on the host and JAX arrays."""

from typing import Any

import jax
import numpy as np
import torch
from jax import Array
from torch import Tensor

# One of ``jax.devices()``; the class has no name that every type checker takes for one.
JaxDevice = Any


def shared_array(tensor: Tensor, device: JaxDevice) -> Array:
    """Return a tensor that nobody writes to as an array; on the host they share memory."""
    array: Array = jax.device_put(jax.dlpack.from_dlpack(tensor.detach().contiguous()), device)
    return array


def copied_array(tensor: Tensor, device: JaxDevice, rows: int | None = None, fill: int = 0) -> Array:
    """Copy a tensor; integers become 32 bits wide, and ``fill`` is appended up to ``rows`` rows."""
    values = tensor.detach()
    padding = 0 if rows is None else rows - len(values)
    padded = torch.cat((values, values.new_full((padding, *values.shape[1:]), fill)))
    # numpy has no bfloat16: its bits travel, and JAX names them.
    is_bfloat16 = padded.dtype == torch.bfloat16
    numbers = padded.view(torch.uint16).numpy().view(jax.numpy.bfloat16) if is_bfloat16 else padded.numpy()
    narrow = numbers.astype(np.int32) if numbers.dtype == np.int64 else numbers
    array: Array = jax.device_put(narrow, device)
    return array


def as_tensor(array: Array) -> Tensor:
    """Copy an array to the host."""
    values = np.array(array)
    if array.dtype == jax.numpy.bfloat16:
        return torch.from_numpy(values.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(values)


def padded_size(size: int, least: int = 1) -> int:
    """Return the power of two that holds ``size``: ops outside of programs are compiled for few shapes."""
    return max(least, 1 << (size - 1).bit_length() if size else 1)
