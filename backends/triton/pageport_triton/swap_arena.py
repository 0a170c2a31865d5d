"""``SwapArena``: pinned host memory through which blocks leave a device and come back."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pageport_triton.accelerator import Accelerator

# Large enough that a copy takes far longer than starting it, small beside any host's memory.
DEFAULT_BYTES = 64 << 20

# Copies blocks between a pool and rows [blocks, bytes per block] on the device.
MoveBlocks = Callable[[Sequence[int], Tensor], None]


class _Chunk(NamedTuple):
    block_ids: Sequence[int]
    rows: slice  # of the host tensor


class SwapArena:
    """Two halves that take turns: while the device copies one, the host copies the other."""

    def __init__(self, accelerator: Accelerator, torch_device: torch.device, num_bytes: int = DEFAULT_BYTES) -> None:
        """Take no memory yet: many engines never swap."""
        self._accelerator = accelerator
        self._device = torch_device
        self._half_bytes = num_bytes // 2
        self._halves: list[Tensor] = []
        self._events: list[Any] = [None, None]  # what the device last did with each half

    def to_host(self, gather: MoveBlocks, block_ids: Sequence[int], out: Tensor) -> None:
        """Copy blocks to ``out`` [blocks, bytes]; returns when they are there."""
        started: list[tuple[int, Tensor, slice]] = []
        for turn, chunk in enumerate(self._chunks(block_ids, out.shape[1])):
            half, staged = self._take(turn % 2, len(chunk.block_ids), out.shape[1])
            gathered = torch.empty(staged.shape, dtype=torch.uint8, device=self._device)
            gather(chunk.block_ids, gathered)
            staged.copy_(gathered, non_blocking=True)
            self._events[half] = self._accelerator.record()
            started.append((half, staged, chunk.rows))
            if len(started) == 2:
                self._finish(*started.pop(0), out)
        for rest in started:
            self._finish(*rest, out)

    def to_device(self, scatter: MoveBlocks, block_ids: Sequence[int], data: Tensor) -> None:
        """Copy ``data`` [blocks, bytes] into blocks; the last copies may still be running."""
        for turn, chunk in enumerate(self._chunks(block_ids, data.shape[1])):
            half, staged = self._take(turn % 2, len(chunk.block_ids), data.shape[1])
            staged.copy_(data[chunk.rows])
            scatter(chunk.block_ids, staged.to(self._device, non_blocking=True))
            self._events[half] = self._accelerator.record()

    def close(self) -> None:
        """Give the memory back."""
        self._halves, self._events = [], [None, None]

    def _take(self, half: int, num_blocks: int, block_bytes: int) -> tuple[int, Tensor]:
        """Wait until nobody uses a half, and return its first rows."""
        if not self._halves or self._halves[0].numel() < block_bytes:
            self._half_bytes = max(self._half_bytes, block_bytes)
            self._halves = [self._accelerator.pinned((self._half_bytes,), torch.uint8) for _ in range(2)]
        if self._events[half] is not None:
            self._events[half].synchronize()
        return half, self._halves[half][: num_blocks * block_bytes].view(num_blocks, block_bytes)

    def _finish(self, half: int, staged: Tensor, rows: slice, out: Tensor) -> None:
        self._events[half].synchronize()
        out[rows] = staged

    def _chunks(self, block_ids: Sequence[int], block_bytes: int) -> Iterator[_Chunk]:
        size = max(1, self._half_bytes // block_bytes)
        for start in range(0, len(block_ids), size):
            ids = block_ids[start : start + size]
            yield _Chunk(ids, slice(start, start + len(ids)))
