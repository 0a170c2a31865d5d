"""``WeightMemory``: where packed weights lie, in large pages where the system has them."""

import mmap

import torch
from torch import Tensor

from pageport_cpu.large_pages import LARGE_PAGE, map_large_pages

# A large page is larger than many a matrix: these share a mapping.
MAPPING_BYTES = 32 * LARGE_PAGE
# A cache line, and the widest vector.
ALIGNMENT = 64


class WeightMemory:
    """Zeroed memory, taken from the system page by page as it is first written.

    A mapping goes back to the system with the last of the tensors in it.
    """

    def __init__(self) -> None:
        self._mapping: mmap.mmap | None = None
        self._used = 0

    def zeros(self, count: int, dtype: torch.dtype) -> Tensor:
        """Return ``count`` zeros, from a multiple of 64 bytes on."""
        size = max(1, count) * dtype.itemsize
        if self._mapping is None or self._used + size > len(self._mapping):
            self._mapping = map_large_pages(max(size, MAPPING_BYTES))
            self._used = 0
        start, self._used = self._used, (self._used + size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        return torch.frombuffer(self._mapping, dtype=dtype, count=max(1, count), offset=start)[:count]
