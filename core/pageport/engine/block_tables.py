"""``BlockTables``: which blocks every persistent row has, one table a cache group, on the host."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from pageport.scheduling.batch import BlockUpdate

Table = npt.NDArray[np.int32]  # [rows, blocks]; -1 where a row has none


class BlockTables:
    """Changed by the scheduler's updates alone."""

    def __init__(self, block_sizes: Sequence[int], *, max_num_seqs: int, max_model_len: int) -> None:
        self.block_sizes = tuple(block_sizes)
        self.groups: list[Table] = [
            np.full((max_num_seqs, -(-(max_model_len + 1) // size)), -1, np.int32) for size in block_sizes
        ]

    def update(self, updates: Sequence[BlockUpdate]) -> None:
        """Apply the scheduler's changes."""
        for row, group, start, block_ids in updates:
            self.groups[group][row, start : start + len(block_ids)] = block_ids

    def padded(
        self, rows: npt.NDArray[np.int64], seq_lens: npt.NDArray[np.int32], num_requests: int, context: int
    ) -> Iterator[Table]:
        """Yield, for each group, the blocks of some rows in a table of a fixed size [num_requests, context / size].

        A row's entries behind its ``seq_lens`` may be those of a sequence that had the row before, and become -1.
        """
        for table, size in zip(self.groups, self.block_sizes, strict=True):
            padded = np.full((num_requests, context // size), -1, np.int32)
            width = min(padded.shape[1], table.shape[1])
            num_blocks = -(-seq_lens[: len(rows), None] // size)
            padded[: len(rows), :width] = np.where(np.arange(width) < num_blocks, table[rows, :width], -1)
            yield padded

    def slots(
        self, token_rows: npt.NDArray[np.int64], positions: npt.NDArray[np.int64], num_tokens: int
    ) -> Iterator[npt.NDArray[np.int64]]:
        """Yield, for each group, where tokens are stored, followed by slot -1 up to ``num_tokens``."""
        for table, size in zip(self.groups, self.block_sizes, strict=True):
            blocks, offsets = np.divmod(positions, size)
            slots = np.full(num_tokens, -1, np.int64)
            slots[: len(positions)] = table[token_rows, blocks].astype(np.int64) * size + offsets
            yield slots
