"""``WeightMemory``: where packed weights lie, in huge pages where the system has them."""

import mmap

import torch
from torch import Tensor

# Huge pages are for whole, aligned pieces of this size, larger than many a matrix: these share a mapping.
HUGE_PAGE_BYTES = 2 * 2**20
MAPPING_BYTES = 32 * HUGE_PAGE_BYTES
# A cache line, and the widest vector.
ALIGNMENT = 64


class WeightMemory:
    """Zeroed memory, taken from the system page by page as it is first written.

    Reading weights at full speed needs huge pages: with ordinary ones the processor spends a third of the time looking
    up addresses. A mapping goes back to the system with the last of the tensors in it.
    """

    def __init__(self) -> None:
        self._mapping: mmap.mmap | None = None
        self._used = 0

    def zeros(self, count: int, dtype: torch.dtype) -> Tensor:
        """Return ``count`` zeros, from a multiple of 64 bytes on."""
        size = max(1, count) * dtype.itemsize
        if self._mapping is None or self._used + size > len(self._mapping):
            self._mapping = _map(max(size, MAPPING_BYTES))
            self._used = 0
        start, self._used = self._used, (self._used + size + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        return torch.frombuffer(self._mapping, dtype=dtype, count=max(1, count), offset=start)[:count]


def _map(num_bytes: int) -> mmap.mmap:
    mapping = mmap.mmap(-1, (num_bytes + HUGE_PAGE_BYTES - 1) // HUGE_PAGE_BYTES * HUGE_PAGE_BYTES)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping
