"""``BlockMove``: blocks of one cache group to copy."""

from typing import NamedTuple


class BlockMove(NamedTuple):
    """Blocks of one group to copy: (source, target) pairs, in this order.

    Device to device for copy-on-write, device to host for swap-out, host to device for swap-in.
    """

    group: int
    pairs: list[tuple[int, int]]
