"""``PagedStep``: a step's requests as libraries of attention kernels want them, read from the batch's mirror."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int32
from torch import Tensor

from pageport.backend.batch import AttentionBatch

Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class PagedRows:
    """Requests that lie together in a step.

    A library masks by how far a key is from the end, and may read every block that it is given. Blocks that lie left
    of a window and were freed are therefore left out, and lengths count from the first block that is there. A row of
    padding reads block 0, which exists, and what comes of it is overwritten: libraries differ about rows without keys.
    """

    tokens: slice
    query_starts: Int32[Tensor, "rows_plus_1"]  # from the first of these tokens
    key_starts: Int32[Tensor, "rows_plus_1"]  # sums of the lengths
    lengths: Int32[Tensor, "rows"]
    block_table: Int32[Tensor, "rows blocks"]  # 0 behind a row's blocks
    max_queries: int
    max_length: int
    padding: tuple[slice, ...]  # tokens of no request, to be cleared

    def to(self, device: torch.device) -> "PagedRows":
        """Return the same with its tensors on ``device``."""
        names = ("query_starts", "key_starts", "lengths", "block_table")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


class PagedStep(NamedTuple):
    """Either is None where a step has no such requests."""

    decodes: PagedRows | None
    prefills: PagedRows | None


def paged_step(batch: AttentionBatch, block_size: int, device: torch.device) -> PagedStep:
    """Lay out a step that is no captured one: those have no mirror.

    Args:
        device: where the tensors of the result are.
    """
    parts = (range(batch.num_decodes), range(batch.num_decodes, batch.num_requests))
    decodes, prefills = (_paged_rows(batch, block_size, part).to(device) if part else None for part in parts)
    return PagedStep(decodes, prefills)


def _paged_rows(batch: AttentionBatch, block_size: int, rows: range) -> PagedRows:
    requests = slice(rows.start, rows.stop)
    starts = batch.host.query_start_loc[rows.start : rows.stop + 1]
    counts = np.diff(starts)
    is_padding = batch.host.seq_lens[requests] == 0
    # One column more, so that there is one.
    table = np.pad(batch.host.block_table[requests], ((0, 0), (0, 1)))
    num_freed = np.where(is_padding, 0, np.argmin(table < 0, axis=1))
    lengths = np.where(is_padding, counts, batch.host.seq_lens[requests] - num_freed * block_size)
    table[is_padding] = 0
    return PagedRows(
        tokens=slice(int(starts[0]), int(starts[-1])),
        query_starts=_tensor(starts - starts[0]),
        key_starts=_tensor(np.concatenate(([0], np.cumsum(lengths)))),
        lengths=_tensor(lengths),
        block_table=_tensor(_shifted(table, num_freed, -(-lengths // block_size))),
        max_queries=int(counts.max()),
        max_length=int(lengths.max()),
        padding=(*_padding_tokens(starts, is_padding), *_tokens_behind(batch, rows)),
    )


def _shifted(table: Ints, num_freed: Ints, num_blocks: Ints) -> Ints:
    """Move each row's blocks to the front, and put 0 behind them."""
    columns = np.arange(num_blocks.max())
    places = np.minimum(num_freed[:, None] + columns, table.shape[1] - 1)
    blocks: Ints = np.where(columns < num_blocks[:, None], np.take_along_axis(table, places, axis=1), 0)
    return blocks


def _padding_tokens(starts: Ints, is_padding: npt.NDArray[np.bool_]) -> list[slice]:
    return [slice(int(starts[row]), int(starts[row + 1])) for row in np.flatnonzero(is_padding)]


def _tokens_behind(batch: AttentionBatch, rows: range) -> list[slice]:
    """Return the tokens behind the last request, if that is one of ``rows``."""
    end = int(batch.host.query_start_loc[batch.num_requests])
    is_last = rows.stop == batch.num_requests
    return [slice(end, batch.num_tokens)] if is_last and end < batch.num_tokens else []


def _tensor(numbers: npt.NDArray[np.integer]) -> Tensor:
    return torch.from_numpy(numbers.astype(np.int32))
