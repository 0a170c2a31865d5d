"""``BlockPool``: the block ids of one memory, each free, cached or used by one or more block tables."""

from collections import Counter
from collections.abc import Iterable
from enum import IntEnum

from pageport.cache.prefix_index import PrefixIndex


class BlockState(IntEnum):
    """Who needs a block: nobody, the prefix index, one table, several."""

    FREE = 0
    CACHED = 1
    USED = 2
    SHARED = 3


class BlockPool:
    """Reference counts, free list and eviction order of ``num_blocks`` blocks.

    A block is *used* while a table holds it, *cached* while nobody does but the prefix index knows its content, else
    *free*. Cached blocks are given away least recently used first, after the free ones.
    """

    def __init__(self, num_blocks: int, index: PrefixIndex | None = None) -> None:
        self.num_blocks = num_blocks
        self.tokens_stored = 0  # over used blocks, shared ones once
        self._index = index
        self._references = [0] * num_blocks
        self._tokens = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: low ids first, then what was freed last
        self._cached: dict[int, None] = {}  # in order of last use

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def num_available(self) -> int:
        """Blocks that ``allocate`` can give: free and cached ones."""
        return len(self._free) + len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_available

    def references(self, block_id: int) -> int:
        """Return how many tables hold the block."""
        return self._references[block_id]

    def tokens(self, block_id: int) -> int:
        """Return how many tokens are stored in the block."""
        return self._tokens[block_id]

    def allocate(self) -> int:
        """Take a block for one table; the caller has made sure that one is available."""
        if self._free:
            block_id = self._free.pop()
        else:
            block_id = next(iter(self._cached))
            del self._cached[block_id]
            assert self._index is not None
            self._index.remove(block_id)
        self._references[block_id] = 1
        self._tokens[block_id] = 0
        return block_id

    def share(self, block_id: int) -> None:
        """Let one more table hold a used or cached block."""
        if self._references[block_id] == 0:
            del self._cached[block_id]
            self.tokens_stored += self._tokens[block_id]
        self._references[block_id] += 1

    def release(self, block_ids: Iterable[int]) -> None:
        """Take the blocks, in the order given, from one table; the first ones are evicted first."""
        for block_id in block_ids:
            assert self._references[block_id] > 0, f"block {block_id} is released more often than it is held"
            self._references[block_id] -= 1
            if self._references[block_id]:
                continue
            self.tokens_stored -= self._tokens[block_id]
            if self._index is not None and block_id in self._index:
                self._cached[block_id] = None
            else:
                self._free.append(block_id)

    def fill(self, block_id: int, num_tokens: int) -> None:
        """Note that a used block stores its first ``num_tokens`` tokens, if not more."""
        added = num_tokens - self._tokens[block_id]
        if added > 0:
            self.tokens_stored += added
            self._tokens[block_id] = num_tokens

    def cut(self, block_id: int, num_tokens: int) -> None:
        """Note that a used block stores no more than its first ``num_tokens`` tokens."""
        dropped = self._tokens[block_id] - num_tokens
        if dropped > 0:
            self.tokens_stored -= dropped
            self._tokens[block_id] = num_tokens

    def states(self) -> bytes:
        """Return a ``BlockState`` for each block."""
        used, shared = BlockState.USED, BlockState.SHARED
        states = bytearray(shared if count > 1 else used if count else 0 for count in self._references)
        for block_id in self._cached:
            states[block_id] = BlockState.CACHED
        return bytes(states)

    def check(self, tables: Iterable[Iterable[int]]) -> None:
        """Prove that every block is in one state only, and held as often as it occurs in ``tables``."""
        holders = Counter(block_id for table in tables for block_id in table)
        assert self._references == [holders[block_id] for block_id in range(self.num_blocks)], "references are wrong"
        used, free, cached = set(holders), set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a block is free twice"
        assert not free & cached and not free & used and not cached & used, "a block is in two states"
        assert len(free) + len(cached) + len(used) == self.num_blocks, "blocks are lost"
        assert self.tokens_stored == sum(self._tokens[block_id] for block_id in used), "stored tokens are miscounted"
        indexed = set() if self._index is None else {block for block in range(self.num_blocks) if block in self._index}
        assert not indexed & free, "a free block is in the prefix index"
        assert cached <= indexed, "a cached block is not in the prefix index"
