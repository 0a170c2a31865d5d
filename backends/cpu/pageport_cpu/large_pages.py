"""Large pages of memory, where the system gives them to those who ask."""

import ctypes
import mmap

# bytes; what Linux calls transparent huge pages on most machines. Less than one is not worth asking for.
LARGE_PAGE = 2 * 2**20


def prefer_large_pages(address: int, size: int) -> None:
    """Ask for large pages in ``size`` bytes from ``address`` on; they still are backed when first touched only.

    Cache blocks lie anywhere: with small pages, finding a block's page costs as much as reading the block. Systems that
    have no such pages, or none to give, go on with small ones.
    """
    advise = getattr(ctypes.CDLL(None), "madvise", None)
    advice = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux only
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    last = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE
    if advise is not None and advice is not None and last - first >= LARGE_PAGE:
        advise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), ctypes.c_int(advice))
