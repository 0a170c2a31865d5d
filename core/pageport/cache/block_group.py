"""``BlockGroup``: the pools of one cache group and its arithmetic."""

from pageport.cache.block_pool import BlockPool
from pageport.cache.layout import GroupLayout
from pageport.cache.prefix_index import PrefixIndex


class BlockGroup:
    """Device blocks with their prefix index, host blocks for swapped sequences, and which blocks a window needs."""

    def __init__(self, layout: GroupLayout) -> None:
        self.block_size = layout.block_size
        self.sliding_window = layout.sliding_window
        self.index = PrefixIndex()
        self.device = BlockPool(layout.num_blocks, self.index)
        self.host = BlockPool(layout.num_host_blocks)

    @property
    def used_slots(self) -> int:
        """Token slots in the device blocks that sequences hold, shared blocks once."""
        return self.device.num_used * self.block_size

    def num_blocks(self, num_tokens: int) -> int:
        """Return how many blocks cover the positions 0 … num_tokens - 1."""
        return -(-num_tokens // self.block_size)

    def max_blocks(self, num_tokens: int, step_tokens: int) -> int:
        """Return how many blocks a sequence of ``num_tokens`` holds at most when no step adds over ``step_tokens``."""
        covering = self.num_blocks(num_tokens)
        if self.sliding_window is None:
            return covering
        # Wherever it begins, a run of `span` positions touches at most one block more than `span - 1` aligned ones.
        span = self.sliding_window - 1 + step_tokens
        return min(covering, self.num_blocks(span - 1) + 1)

    def first_live_block(self, first_position: int) -> int:
        """Return the first block that a query at ``first_position`` or later can see.

        Position p sees p - window + 1 … p.
        """
        if self.sliding_window is None:
            return 0
        return max(0, first_position - self.sliding_window + 1) // self.block_size

    def next_event(self, num_tokens: int) -> int:
        """Return the next larger number of tokens at which a block becomes full or drops out of the window."""
        size = self.block_size
        fills = (num_tokens // size + 1) * size
        if self.sliding_window is None:
            return fills
        return min(fills, (self.first_live_block(num_tokens) + 1) * size + self.sliding_window - 1)
