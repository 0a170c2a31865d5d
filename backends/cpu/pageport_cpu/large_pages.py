"""Memory in large pages, where the system has them: with small ones, looking up addresses takes as long as reading."""

import mmap

# bytes; what Linux calls transparent huge pages on most machines. They are for whole, aligned pieces of this size.
LARGE_PAGE = 2 * 2**20


def map_large_pages(num_bytes: int) -> mmap.mmap:
    """Return at least ``num_bytes`` of zeroed memory, which is backed when it is first touched only.

    It goes back to the system with the last reference. Systems that have no large pages, or none to give, go on with
    small ones.

    Raises:
        OSError, OverflowError: there is not so much.
    """
    # Memory of this process alone: what may be shared with others gets no large pages by asking.
    own = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    mapping = mmap.mmap(-1, (num_bytes + LARGE_PAGE - 1) // LARGE_PAGE * LARGE_PAGE, flags=own)
    if hasattr(mmap, "MADV_HUGEPAGE"):  # Linux only
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping
