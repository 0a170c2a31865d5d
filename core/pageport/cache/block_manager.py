"""``BlockManager``: which block of the KV cache holds which tokens of which sequence. Plain ints."""

import sys
from collections.abc import Mapping, Sequence

from pageport.cache.block_group import BlockGroup
from pageport.cache.block_move import BlockMove
from pageport.cache.block_table import BlockTable
from pageport.cache.errors import UnknownSequence
from pageport.cache.hash_chain import HashChain
from pageport.cache.layout import GroupLayout
from pageport.cache.prefix_match import cached_prefix, first_missing_block
from pageport.cache.promises import Promises
from pageport.cache.sequence_blocks import SequenceBlocks
from pageport.cache.usage import CacheUsage
from pageport.cache.waste import WasteMeter, waste_ratio


class BlockManager:
    """Block tables, sharing, copy-on-write, prefix reuse and swapping for every cache group at once.

    A sequence's life: ``open``, then ``reserve`` before and ``commit`` after each step that computes tokens of it,
    then ``free``. Several steps may be in flight: ``reserve`` counts from what is reserved, not from what is committed.
    A caller that does not run what it reserved says so with ``truncate``.

    Writing rule: a step writes positions behind the reserved ones only, so the one existing block it can touch is the
    partly filled last block; that block is held by one table only and is not in the prefix index.
    """

    def __init__(
        self, groups: Sequence[GroupLayout], *, enable_prefix_caching: bool = True, max_tokens_per_step: int = 2048
    ) -> None:
        self._groups = [BlockGroup(layout) for layout in groups]
        self._enable_prefix_caching = enable_prefix_caching
        self._max_tokens_per_step = max_tokens_per_step
        self._sequences: dict[int, SequenceBlocks] = {}
        self._waste = [WasteMeter() for _ in self._groups]
        self._promises = Promises()

    # Capacity

    @property
    def max_sequence_tokens(self) -> int:
        """Tokens that one sequence alone can ever hold; ``sys.maxsize`` when every group's window and step fit."""
        return min(self._max_tokens(group) for group in self._groups)

    def blocks_for(self, group: int, num_tokens: int) -> int:
        """Return how many blocks of a group a sequence of ``num_tokens`` holds at most."""
        return self._groups[group].max_blocks(num_tokens, self._max_tokens_per_step)

    def free_blocks(self) -> tuple[int, ...]:
        """Return how many blocks of each group can be allocated: free ones and cached ones that nobody holds."""
        return tuple(group.device.num_available for group in self._groups)

    def _max_tokens(self, group: BlockGroup) -> int:
        if group.max_blocks(sys.maxsize, self._max_tokens_per_step) <= group.device.num_blocks:
            return sys.maxsize
        return group.device.num_blocks * group.block_size

    # Life of a sequence

    def open(
        self,
        sequence_id: int,
        token_ids: Sequence[int],
        cache_keys: Mapping[str, str],
        *,
        read_prefix: bool = True,
        chain: HashChain | None = None,
    ) -> int:
        """Register a sequence and let it share the longest cached prefix that is valid in every group.

        Args:
            chain: digests of ``token_ids`` under ``cache_keys`` as far as somebody has made them; goes over to the
                sequence.

        Returns:
            How many tokens are cached: whole blocks, fewer than ``len(token_ids)``, so that one token is left to
            compute and give logits.
        """
        self._refuse_open(sequence_id)
        chain = chain or HashChain(cache_keys)
        sequence = SequenceBlocks(tables=[BlockTable(group) for group in self._groups], chain=chain)
        self._sequences[sequence_id] = sequence
        if not self._enable_prefix_caching:
            return 0
        num_cached = cached_prefix(self._groups, chain, token_ids) if read_prefix else 0
        for table in sequence.tables:
            table.adopt(chain, token_ids, num_cached)
        sequence.reserved = sequence.committed = num_cached
        sequence.has_updates = num_cached > 0
        size = self._groups[0].block_size
        self._promises.make(
            sequence_id,
            (
                ((entry + 1) * size, chain.digest(size, token_ids, entry))
                for entry in range(num_cached // size, len(token_ids) // size)
            ),
        )
        return num_cached

    def awaits_prefix(self, chain: HashChain, token_ids: Sequence[int]) -> bool:
        """Is the first block that a sequence with these tokens would have to compute being computed by another?

        It had better not be opened yet: once that block is in the prefix index, it need not compute it.
        """
        if not len(self._promises):
            return False
        missing = first_missing_block(self._groups[0], chain, token_ids)
        return missing is not None and missing in self._promises

    def reserve(self, sequence_id: int, num_tokens: int) -> list[BlockMove] | None:
        """Make the positions from the reserved ones up to ``num_tokens`` writable in every group.

        The step being scheduled is taken to compute them: the next call counts from ``num_tokens``. Asking again for
        no more is a no-op.

        Returns:
            The copies that this step makes before it writes (a shared, partly filled last block), or None when blocks
            are short in some group; nothing is changed then.
        """
        sequence = self._get(sequence_id)
        reserved = sequence.reserved
        if num_tokens <= reserved:
            return []
        if num_tokens <= sequence.writable_until:
            sequence.reserved = num_tokens
            return []
        if sequence.is_swapped:
            raise ValueError(f"sequence {sequence_id} is in host blocks; swap it in before it grows")
        if not self._make_room(sequence, num_tokens):
            return None
        moves: list[BlockMove] = []
        for number, table in enumerate(sequence.tables):
            pair = table.own_last_block(reserved)
            if pair is not None:
                moves.append(BlockMove(number, [pair]))
            table.extend(num_tokens)
        sequence.reserved = num_tokens
        sequence.writable_until = min(len(table.entries) * table.block_size for table in sequence.tables)
        sequence.has_updates = True
        return moves

    def commit(self, sequence_id: int, token_ids: Sequence[int], num_tokens: int) -> None:
        """Note that the first ``num_tokens`` of ``token_ids`` are computed and final.

        Blocks that became full enter the prefix index; blocks that the next position's window has passed are released.
        """
        sequence = self._get(sequence_id)
        previous = sequence.committed
        assert num_tokens <= sequence.reserved, f"{num_tokens} tokens committed, {sequence.reserved} reserved"
        if num_tokens <= previous:
            return
        sequence.committed = num_tokens
        if num_tokens < sequence.uneventful_until:
            for table in sequence.tables:
                table.pool.fill(table.entries[num_tokens // table.block_size], num_tokens % table.block_size)
            return
        for table in sequence.tables:
            table.drop_swap_sources()
            table.fill(previous, num_tokens)
            if sequence.is_swapped:
                continue
            if self._enable_prefix_caching:
                table.index_full_blocks(sequence.chain, token_ids, num_tokens)
            sequence.has_updates |= table.release_passed(num_tokens)
        self._promises.keep(sequence_id, num_tokens)
        sequence.uneventful_until = min(group.next_event(num_tokens) for group in self._groups)

    def fork(self, parent_id: int, child_id: int) -> None:
        """Open ``child_id`` as a copy of ``parent_id`` that shares every block, written or about to be."""
        parent = self._get(parent_id)
        self._refuse_open(child_id)
        # The last block is shared from now on: the next write has to look at it.
        parent.writable_until = 0
        self._sequences[child_id] = SequenceBlocks(
            tables=[table.fork() for table in parent.tables],
            chain=parent.chain.copy(),
            reserved=parent.reserved,
            committed=parent.committed,
            is_swapped=parent.is_swapped,
            has_updates=True,
        )

    def truncate(self, sequence_id: int, num_tokens: int) -> None:
        """Drop what lies behind the first ``num_tokens``: rejected speculation, or a reservation that is not run.

        Raises:
            ValueError: a sliding window has released blocks that position ``num_tokens`` would see.
        """
        sequence = self._get(sequence_id)
        if num_tokens >= sequence.reserved:
            # Looking for a prefix may have hashed tokens that were not reserved yet.
            sequence.chain.truncate(num_tokens)
            return
        for table in sequence.tables:
            if table.num_released > table.group.first_live_block(num_tokens):
                raise ValueError(
                    f"sequence {sequence_id} cannot go back to {num_tokens} tokens: a window of "
                    f"{table.group.sliding_window} has released what the next one would see. Free and reopen it."
                )
        for table in sequence.tables:
            table.truncate(num_tokens)
        self._promises.withdraw(sequence_id)
        sequence.chain.truncate(num_tokens)
        sequence.reserved = num_tokens
        sequence.committed = min(sequence.committed, num_tokens)
        sequence.writable_until = sequence.uneventful_until = 0

    def free(self, sequence_id: int) -> None:
        """Forget a sequence and release its blocks.

        Raises:
            UnknownSequence: it is not open, or freed already.
        """
        for table in self._get(sequence_id).tables:
            table.free()
        self._promises.withdraw(sequence_id)
        del self._sequences[sequence_id]

    # Swapping

    def swap_out(self, sequence_id: int) -> list[BlockMove] | None:
        """Move a sequence to host blocks; None when the host pool is short in some group, nothing is changed then.

        A step copies out before it copies in and before its copies-on-write. So a sequence that this step has
        swapped in or reserved for already is left alone or freed, not swapped out.
        """
        sequence = self._get(sequence_id)
        if sequence.is_swapped:
            raise ValueError(f"sequence {sequence_id} is in host blocks already")
        return self._swap(sequence_id, sequence)

    def swap_in(self, sequence_id: int) -> list[BlockMove] | None:
        """Move a swapped sequence to fresh device blocks; None when these are short, nothing is changed then.

        The host blocks stay taken until the next commit: a swap-out of the same step, which is copied first, must not
        overwrite them. A step copies in before its copies-on-write, so it swaps in before it reserves, or frees nothing
        in between.
        """
        sequence = self._get(sequence_id)
        if not sequence.is_swapped:
            raise ValueError(f"sequence {sequence_id} is in device blocks already")
        return self._swap(sequence_id, sequence)

    # For the runner

    def take_updates(self, sequence_id: int) -> list[tuple[int, int, list[int]]]:
        """Return (group, first entry, block ids) of what changed in the block tables since the last call.

        After ``open``, ``fork`` and a swap that is everything. Entries that ``truncate`` dropped are not mentioned:
        no query looks at them.
        """
        sequence = self._get(sequence_id)
        if not sequence.has_updates:
            return []
        sequence.has_updates = False
        changes = ((number, table.take_changes()) for number, table in enumerate(sequence.tables))
        return [(number, start, block_ids) for number, runs in changes for start, block_ids in runs]

    def block_table(self, sequence_id: int, group: int) -> list[int]:
        """Return the block of each ``block_size`` positions; -1 where a sliding window has released it."""
        return self._get(sequence_id).tables[group].entries.copy()

    # Accounting

    def usage(self) -> CacheUsage:
        """Count the device's blocks and stored tokens of every group."""
        pools = [group.device for group in self._groups]
        return CacheUsage(
            total=tuple(pool.num_blocks for pool in pools),
            used=tuple(pool.num_used for pool in pools),
            cached=tuple(pool.num_cached for pool in pools),
            free=tuple(pool.num_free for pool in pools),
            tokens_stored=tuple(pool.tokens_stored for pool in pools),
            waste_ratio=tuple(waste_ratio(group.device.tokens_stored, group.used_slots) for group in self._groups),
        )

    def block_states(self) -> tuple[bytes, ...]:
        """Return a ``BlockState`` for each of the device's blocks, by group."""
        return tuple(group.device.states() for group in self._groups)

    def record_waste(self) -> None:
        """Add the present waste to the running average: once a step, after its commits."""
        for meter, group in zip(self._waste, self._groups, strict=True):
            meter.record(group.device.tokens_stored, group.used_slots)

    def average_waste(self) -> tuple[float, ...]:
        """Return the waste ratio of each group, averaged over the recorded steps."""
        return tuple(meter.average for meter in self._waste)

    def check(self) -> None:
        """Prove every count: the pools against the block tables, the prefix index against the pools.

        Raises:
            AssertionError: says what does not agree.
        """
        for sequence in self._sequences.values():
            assert sequence.committed <= sequence.reserved
            for table in sequence.tables:
                assert table.is_swapped == sequence.is_swapped
                table.check(sequence.reserved, sequence.committed, sequence.writable_until)
        self._promises.check(self._sequences)
        for number, group in enumerate(self._groups):
            tables = [sequence.tables[number] for sequence in self._sequences.values()]
            group.index.check()
            group.device.check([table.held for table in tables if not table.is_swapped])
            group.host.check(
                [table.held for table in tables if table.is_swapped] + [table.swap_sources for table in tables]
            )

    # Steps of the above

    def _get(self, sequence_id: int) -> SequenceBlocks:
        try:
            return self._sequences[sequence_id]
        except KeyError:
            raise UnknownSequence(sequence_id) from None

    def _refuse_open(self, sequence_id: int) -> None:
        if sequence_id in self._sequences:
            raise ValueError(f"sequence {sequence_id} is open already; free it first")

    def _make_room(self, sequence: SequenceBlocks, num_tokens: int) -> bool:
        """See that every group can give what reserving takes, or leave all as it is and say no.

        ``commit`` releases what a window has passed, once it is in the prefix index. While steps are in flight it
        comes late; such blocks are released here, but only where room is short.
        """
        short: list[BlockTable] = []
        for table in sequence.tables:
            missing = table.blocks_needed(sequence.reserved, num_tokens) - table.pool.num_available
            if missing > 0:
                if missing > table.blocks_passed(sequence.reserved):
                    return False
                short.append(table)
        for table in short:
            sequence.has_updates |= table.release_passed(sequence.reserved)
        return True

    def _swap(self, sequence_id: int, sequence: SequenceBlocks) -> list[BlockMove] | None:
        """Exchange the memory a sequence is in."""
        for table in sequence.tables:
            pool = table.group.device if sequence.is_swapped else table.group.host
            if len(table.held) > pool.num_available:
                return None
        sequence.is_swapped = not sequence.is_swapped
        self._promises.withdraw(sequence_id)
        sequence.writable_until = sequence.uneventful_until = 0
        sequence.has_updates = True
        moves = (BlockMove(number, table.move()) for number, table in enumerate(sequence.tables))
        return [move for move in moves if move.pairs]
