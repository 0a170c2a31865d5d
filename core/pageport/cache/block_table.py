"""``BlockTable``: the blocks of one sequence in one cache group."""

from collections.abc import Sequence

from pageport.cache.block_group import BlockGroup
from pageport.cache.hash_chain import HashChain

RELEASED = -1  # a table entry whose block a sliding window has passed


class BlockTable:
    """Entry i holds positions i·block_size … of the sequence; the first ``num_released`` entries are ``RELEASED``.

    The entries cover exactly the tokens that the sequence has reserved. Their blocks are the host's while
    ``is_swapped``.
    """

    __slots__ = ("_changes", "_num_indexed", "_swap_sources", "block_size", "entries", "group", "num_released", "pool")

    def __init__(self, group: BlockGroup) -> None:
        self.group = group
        self.block_size = group.block_size
        self.pool = group.device
        self.entries: list[int] = []
        self.num_released = 0
        self._num_indexed = 0  # leading entries that were offered to the prefix index
        self._changes: list[tuple[int, int]] = []  # (first entry, past the last entry) that the runner has not seen
        self._swap_sources: list[int] = []  # host blocks that the step with the swap-in reads

    @property
    def is_swapped(self) -> bool:
        return self.pool is self.group.host

    @property
    def held(self) -> list[int]:
        """The block ids, without the released ones."""
        return self.entries[self.num_released :]

    @property
    def swap_sources(self) -> list[int]:
        """Host blocks still taken although the sequence is back on the device."""
        return self._swap_sources

    def adopt(self, chain: HashChain, token_ids: Sequence[int], num_tokens: int) -> None:
        """Share the blocks of a cached prefix, all of which the index is known to hold."""
        size, index = self.block_size, self.group.index
        self.num_released = self.group.first_live_block(num_tokens)
        self.entries = [RELEASED] * self.num_released
        for entry in range(self.num_released, num_tokens // size):
            block_id = index.find(chain.digest(size, token_ids, entry))
            assert block_id is not None
            self.pool.share(block_id)
            self.entries.append(block_id)
        self._num_indexed = len(self.entries)
        self._changes = [(0, len(self.entries))]

    def fork(self) -> "BlockTable":
        """Return a table that shares every block, and of which the runner has seen nothing."""
        for block_id in self.held:
            self.pool.share(block_id)
        child = BlockTable(self.group)
        child.pool = self.pool
        child.entries = self.entries.copy()
        child.num_released = self.num_released
        child._num_indexed = self._num_indexed
        child._changes = [(0, len(self.entries))]
        return child

    def blocks_needed(self, reserved: int, num_tokens: int) -> int:
        """Return how many blocks growing from ``reserved`` to ``num_tokens`` takes, a copy-on-write included."""
        new = self.group.num_blocks(num_tokens) - len(self.entries)
        copied = reserved % self.block_size > 0 and self.pool.references(self.entries[-1]) > 1
        return new + copied

    def blocks_passed(self, first_position: int) -> int:
        """Return how many blocks ``release_passed`` would make available."""
        passed = self.entries[self.num_released : self.group.first_live_block(first_position)]
        return sum(self.pool.references(block_id) == 1 for block_id in passed)

    def release_passed(self, first_position: int) -> bool:
        """Release what no query at ``first_position`` or later sees; say whether there was any."""
        released, live = self.num_released, self.group.first_live_block(first_position)
        if live <= released:
            return False
        # First block first: it was read longest ago, and a hit needs the last ones before its end.
        self.pool.release(self.entries[released:live])
        self.entries[released:live] = [RELEASED] * (live - released)
        self.num_released = live
        self._changes.append((released, live))
        return True

    def own_last_block(self, reserved: int) -> tuple[int, int] | None:
        """Make the partly filled last block writable for this table alone; return the copy that takes, if any."""
        kept_tokens = reserved % self.block_size
        if not kept_tokens:
            return None
        source, pool = self.entries[-1], self.pool
        if pool.references(source) == 1:
            # Only truncate() can lead back into a block whose content is indexed.
            if source in self.group.index:
                self.group.index.remove(source)
            pool.cut(source, kept_tokens)
            return None
        target = pool.allocate()
        pool.fill(target, min(pool.tokens(source), kept_tokens))
        pool.release([source])
        self.entries[-1] = target
        self._changes.append((len(self.entries) - 1, len(self.entries)))
        return source, target

    def extend(self, num_tokens: int) -> None:
        """Add fresh blocks until ``num_tokens`` are covered."""
        start, stop = len(self.entries), self.group.num_blocks(num_tokens)
        if start < stop:
            self.entries.extend([self.pool.allocate() for _ in range(start, stop)])
            self._changes.append((start, stop))

    def fill(self, previous: int, num_tokens: int) -> None:
        """Note that the tokens from ``previous`` to ``num_tokens`` are stored."""
        size = self.block_size
        for entry in range(max(previous // size, self.num_released), (num_tokens - 1) // size + 1):
            self.pool.fill(self.entries[entry], min(num_tokens - entry * size, size))

    def index_full_blocks(self, chain: HashChain, token_ids: Sequence[int], num_tokens: int) -> None:
        """Enter the full blocks of the first ``num_tokens`` in the prefix index, where they are new."""
        size = self.block_size
        for entry in range(max(self._num_indexed, self.num_released), num_tokens // size):
            self.group.index.add(chain.digest(size, token_ids, entry), self.entries[entry])
            self._num_indexed = entry + 1

    def truncate(self, num_tokens: int) -> None:
        """Release what lies behind the first ``num_tokens``, last block first."""
        keep = self.group.num_blocks(num_tokens)
        self.pool.release(reversed(self.entries[keep:]))
        del self.entries[keep:]
        self._num_indexed = min(self._num_indexed, num_tokens // self.block_size)

    def free(self) -> None:
        """Release every block, last one first, so that a shared prefix is evicted last."""
        self.pool.release(reversed(self.held))
        self.drop_swap_sources()

    def move(self) -> list[tuple[int, int]]:
        """Take fresh blocks in the other memory and return the copies that fill them.

        Device blocks are released at once; host blocks stay taken until ``drop_swap_sources``.
        """
        self.drop_swap_sources()
        source_pool, old = self.pool, self.held
        self.pool = self.group.device if self.is_swapped else self.group.host
        new = [self.pool.allocate() for _ in old]
        for source, target in zip(old, new, strict=True):
            self.pool.fill(target, source_pool.tokens(source))
        if self.is_swapped:
            source_pool.release(reversed(old))
        else:
            self._swap_sources = old
            self._num_indexed = 0  # these blocks are new to the prefix index
        self.entries[self.num_released :] = new
        self._changes = [(0, len(self.entries))]
        return list(zip(old, new, strict=True))

    def drop_swap_sources(self) -> None:
        """Release the host blocks that a swap-in has read."""
        if self._swap_sources:
            self.group.host.release(self._swap_sources)
            self._swap_sources = []

    def take_changes(self) -> list[tuple[int, list[int]]]:
        """Return (first entry, block ids) of what changed since the last call."""
        changes, self._changes = self._changes, []
        runs = [(start, self.entries[start:stop]) for start, stop in changes]
        return [run for run in runs if run[1]]

    def check(self, reserved: int, committed: int, writable_until: int) -> None:
        """Prove that the entries cover what is reserved, store what is committed, and are writable where promised."""
        size = self.block_size
        assert len(self.entries) == self.group.num_blocks(reserved), "a block table does not cover what is reserved"
        assert all((block == RELEASED) == (entry < self.num_released) for entry, block in enumerate(self.entries))
        for entry in range(self.num_released, self.group.num_blocks(committed)):
            stored = min(committed - entry * size, size)
            assert self.pool.tokens(self.entries[entry]) >= stored, "a block stores less than is committed in it"
        if writable_until > reserved:
            last = self.entries[-1]
            assert self.pool.references(last) == 1 and last not in self.group.index, "a writable block is shared"
