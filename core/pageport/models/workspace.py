"""``Workspace``: the persistent buffers a decoder computes in."""

import math

import torch
from torch import Tensor


class Workspace:
    """Named flat buffers, handed out as contiguous views.

    A reserved buffer keeps its address for good, which captured steps rely on. One name serves every shape that fits:
    layers of different widths share it.
    """

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device
        self._buffers: dict[str, Tensor] = {}

    def reserve(self, name: str, num_elements: int) -> None:
        """Make buffer ``name`` hold at least ``num_elements``; what it held is lost when it grows."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < num_elements:
            self._buffers.pop(name, None)  # freed first: old and new need not fit together
            # Not filled: a host's pages are taken when a step first writes to them.
            self._buffers[name] = torch.empty(num_elements, dtype=self._dtype, device=self._device)

    def view(self, name: str, *shape: int) -> Tensor:
        """Return the start of buffer ``name`` as a contiguous tensor of ``shape``.

        Raises:
            KeyError: nothing is reserved under this name.
        """
        buffer = self._buffers[name]
        num_elements = math.prod(shape)
        assert num_elements <= buffer.numel(), f"{name}: {shape} does not fit in {buffer.numel()} reserved elements"
        return buffer[:num_elements].view(shape)

    def growing_view(self, name: str, rows: int, features: int) -> Tensor:
        """Like ``view``, but grow the buffer, to a power of two of rows, when it is too small: its address changes."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < rows * features:
            self.reserve(name, (1 << max(rows - 1, 0).bit_length()) * features)
        return self.view(name, rows, features)

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers together."""
        return sum(buffer.numel() * buffer.element_size() for buffer in self._buffers.values())
