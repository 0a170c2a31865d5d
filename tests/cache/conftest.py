"""A block manager with a make-believe device behind it that remembers what every slot holds."""

from collections.abc import Mapping, Sequence

import pytest

from pageport.cache.block_manager import BlockManager
from pageport.cache.block_move import BlockMove
from pageport.cache.layout import GroupLayout

Memory = dict[tuple[int, int], int]  # (block, offset) → what was written there


class CacheDriver:
    """Runs sequences as an engine does: reserve, copy, write through the runner's own tables, commit.

    What is written at a position stands for keys and values: it depends on the cache keys and all tokens up to there.
    """

    def __init__(self, *groups: GroupLayout, enable_prefix_caching: bool = True, max_tokens_per_step: int = 2048):
        self.groups = groups
        self.blocks = BlockManager(
            groups, enable_prefix_caching=enable_prefix_caching, max_tokens_per_step=max_tokens_per_step
        )
        self.device: list[Memory] = [{} for _ in groups]
        self.host: list[Memory] = [{} for _ in groups]
        self.keys: dict[int, Mapping[str, str]] = {}
        self.tokens: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self.tables: dict[int, list[list[int]]] = {}  # what the runner was told
        self.swapped: set[int] = set()
        self.num_copies = 0

    def open(
        self,
        sequence_id: int,
        token_ids: Sequence[int],
        keys: Mapping[str, str] | None = None,
        *,
        read_prefix: bool = True,
    ) -> int:
        cached = self.blocks.open(sequence_id, token_ids, keys or {}, read_prefix=read_prefix)
        self.keys[sequence_id], self.tokens[sequence_id] = keys or {}, list(token_ids)
        self.computed[sequence_id], self.tables[sequence_id] = cached, [[] for _ in self.groups]
        return cached

    def run(self, sequence_id: int, num_tokens: int) -> bool:
        """Compute up to ``num_tokens``; False when blocks are short. The commit comes later."""
        moves = self.blocks.reserve(sequence_id, num_tokens)
        if moves is None:
            return False
        self.apply_copies(moves)
        self.update_tables(sequence_id)
        values = self.values(sequence_id)
        for group, layout in enumerate(self.groups):
            for position in range(self.computed[sequence_id], num_tokens):
                block = self.tables[sequence_id][group][position // layout.block_size]
                self.device[group][block, position % layout.block_size] = values[position]
        self.computed[sequence_id] = max(self.computed[sequence_id], num_tokens)
        return True

    def apply_copies(self, moves: list[BlockMove]) -> None:
        self._copy(moves, self.device, self.device)
        self.num_copies += sum(len(move.pairs) for move in moves)

    def commit(self, sequence_id: int, num_tokens: int | None = None) -> None:
        count = self.computed[sequence_id] if num_tokens is None else num_tokens
        self.blocks.commit(sequence_id, self.tokens[sequence_id], count)

    def step(self, sequence_id: int, num_tokens: int | None = None) -> bool:
        count = len(self.tokens[sequence_id]) if num_tokens is None else num_tokens
        if not self.run(sequence_id, count):
            return False
        self.commit(sequence_id)
        return True

    def decode(self, sequence_id: int, token_id: int) -> bool:
        self.tokens[sequence_id].append(token_id)
        return self.step(sequence_id)

    def fork(self, parent_id: int, child_id: int) -> None:
        self.blocks.fork(parent_id, child_id)
        self.keys[child_id], self.tokens[child_id] = self.keys[parent_id], self.tokens[parent_id].copy()
        self.computed[child_id], self.tables[child_id] = self.computed[parent_id], [[] for _ in self.groups]
        if parent_id in self.swapped:
            self.swapped.add(child_id)

    def truncate(self, sequence_id: int, num_tokens: int) -> None:
        self.blocks.truncate(sequence_id, num_tokens)
        self.computed[sequence_id] = min(self.computed[sequence_id], num_tokens)
        del self.tokens[sequence_id][num_tokens:]

    def free(self, sequence_id: int) -> None:
        self.blocks.free(sequence_id)
        for of_sequence in (self.keys, self.tokens, self.computed, self.tables):
            del of_sequence[sequence_id]
        self.swapped.discard(sequence_id)

    def swap_out(self, sequence_id: int) -> bool:
        moves = self.blocks.swap_out(sequence_id)
        if moves is None:
            return False
        self._copy(moves, self.device, self.host)
        self.swapped.add(sequence_id)
        return True

    def swap_in(self, sequence_id: int) -> bool:
        moves = self.blocks.swap_in(sequence_id)
        if moves is None:
            return False
        self._copy(moves, self.host, self.device)
        self.swapped.discard(sequence_id)
        return True

    def update_tables(self, sequence_id: int) -> None:
        for group, start, block_ids in self.blocks.take_updates(sequence_id):
            table = self.tables[sequence_id][group]
            table.extend([-7] * (start + len(block_ids) - len(table)))
            table[start : start + len(block_ids)] = block_ids

    def values(self, sequence_id: int) -> list[int]:
        """Return what belongs at each position."""
        value, values = hash(tuple(sorted(self.keys[sequence_id].items()))), []
        for token_id in self.tokens[sequence_id]:
            value = hash((value, token_id))
            values.append(value)
        return values

    def check(self) -> None:
        """Prove the accounting, the runner's tables, and what every position that can still be read holds."""
        self.blocks.check()
        for sequence_id, computed in self.computed.items():
            values = self.values(sequence_id)
            is_swapped = sequence_id in self.swapped
            if not is_swapped:
                self.update_tables(sequence_id)
            for group, layout in enumerate(self.groups):
                table = self.blocks.block_table(sequence_id, group)
                assert is_swapped or self.tables[sequence_id][group][: len(table)] == table
                memory = (self.host if is_swapped else self.device)[group]
                first = 0 if layout.sliding_window is None else max(0, computed - layout.sliding_window + 1)
                for position in range(first, computed):
                    slot = table[position // layout.block_size], position % layout.block_size
                    assert memory[slot] == values[position], f"sequence {sequence_id} lost position {position}"

    def _copy(self, moves: list[BlockMove], source: list[Memory], target: list[Memory]) -> None:
        for group, pairs in moves:
            for old, new in pairs:
                for offset in range(self.groups[group].block_size):
                    if (old, offset) in source[group]:
                        target[group][new, offset] = source[group][old, offset]


@pytest.fixture
def driver() -> type[CacheDriver]:
    return CacheDriver


@pytest.fixture
def cache() -> CacheDriver:
    """One full-attention group of 16 blocks of 16 tokens."""
    return CacheDriver(GroupLayout(num_blocks=16, block_size=16))
