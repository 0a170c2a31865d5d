"""Between torch tensors on the host and JAX arrays."""

import jax
import numpy as np
import torch
from jax import Array
from torch import Tensor


def shared_array(tensor: Tensor, device: jax.Device) -> Array:
    """Return a tensor that nobody writes to as an array; on the host they share memory."""
    return jax.device_put(jax.dlpack.from_dlpack(tensor.detach().contiguous()), device)


def copied_array(tensor: Tensor, device: jax.Device, rows: int | None = None, fill: int = 0) -> Array:
    """Copy a tensor; integers become 32 bits wide, and ``fill`` is appended up to ``rows`` rows."""
    values = tensor.detach()
    padding = 0 if rows is None else rows - len(values)
    padded = torch.cat((values, values.new_full((padding, *values.shape[1:]), fill)))
    if padded.dtype == torch.bfloat16:
        # numpy has no such dtype: its bits travel, JAX names them.
        return jax.device_put(padded.view(torch.uint16).numpy().view(jax.numpy.bfloat16), device)
    array = padded.numpy()
    return jax.device_put(array.astype(np.int32) if array.dtype == np.int64 else array, device)


def as_tensor(array: Array) -> Tensor:
    """Copy an array to the host."""
    values = np.array(array)
    if array.dtype == jax.numpy.bfloat16:
        return torch.from_numpy(values.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(values)


def padded_size(size: int, least: int = 1) -> int:
    """Return the power of two that holds ``size``: ops outside of programs are compiled for few shapes."""
    return max(least, 1 << (size - 1).bit_length() if size else 1)
