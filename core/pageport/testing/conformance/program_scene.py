"""``ProgramScene``: a model as a program on a device, over pools that hold NaN wherever no step has written."""

from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from pageport.backend.choice import ChoiceBatch
from pageport.backend.device import Device
from pageport.backend.kv import AttentionParams, KVSpec
from pageport.backend.program import Bucket, ModelProgram, ProgramOutput, ProgramStep
from pageport.engine.builder import OpenModel
from pageport.models.description import describe_decoder
from pageport.models.rope import rope_tables
from pageport.models.spec import cache_groups
from pageport.models.weights import load_decoder_weights

Blocks = list[list[int]]  # one list a cache group


class ProgramRow(NamedTuple):
    """One request's next tokens, the first of which has position ``start``."""

    tokens: Sequence[int]
    start: int
    blocks: Blocks


class ProgramScene:
    """Builds the program and compiles every bucket; a context manager that gives all of it back."""

    def __init__(
        self,
        device: Device,
        model: OpenModel,
        buckets: Sequence[Bucket],
        *,
        dtype: str,
        kv_dtype: str,
        block_size: int,
        num_blocks: int,
        generator: np.random.Generator,
    ) -> None:
        self.device = device
        self.num_blocks = num_blocks
        self.vocab_size = model.spec.vocab_size
        self._dtype: torch.dtype = getattr(torch, dtype)
        self._groups = cache_groups(model.spec)
        self.kv_specs = [group.kv_spec(block_size, kv_dtype) for group in self._groups]
        self._free = [generator.permutation(num_blocks).tolist() for _ in self._groups]
        self._write_size = max(bucket.tokens for bucket in buckets)
        length = max(bucket.context for bucket in buckets)
        self._description = describe_decoder(model.spec, self.kv_specs, compute_dtype=dtype, max_model_len=length)
        self._weights = replace(
            load_decoder_weights(model.spec, model.checkpoint, device, dtype),
            rope_tables=rope_tables(model.spec.ropes, length, device.torch_device),
        )
        self.pools = [device.allocate_kv(spec, num_blocks) for spec in self.kv_specs]
        for group, spec in enumerate(self.kv_specs):
            self._poison(group, range(-1, num_blocks * spec.block_size))
        self.program = self.build(buckets)
        for bucket in buckets:
            self.program.compile(bucket)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.program.close()
        for pool in self.pools:
            self.device.free_kv(pool)

    def build(self, buckets: Sequence[Bucket]) -> ModelProgram:
        """Build a program over the scene's pools, with nothing compiled."""
        return self.device.build_model(self._description, self._weights, self.pools, buckets)

    def new_blocks(self, num_tokens: int) -> Blocks:
        """Take blocks for a sequence."""
        return [
            [free.pop() for _ in range(-(-num_tokens // spec.block_size))]
            for free, spec in zip(self._free, self.kv_specs, strict=True)
        ]

    def give_back(self, rows: Sequence[ProgramRow]) -> None:
        """Let others have the blocks of these, with nothing in them."""
        for row in rows:
            for group, (spec, blocks) in enumerate(zip(self.kv_specs, row.blocks, strict=True)):
                size = spec.block_size
                self._poison(group, [block * size + offset for block in blocks for offset in range(size)])
                self._free[group] += blocks

    def run(self, bucket: Bucket, rows: Sequence[ProgramRow], choice: ChoiceBatch | None = None) -> ProgramOutput:
        """Run one step, with NaN where the one before left what filled it up."""
        for group in range(len(self.pools)):
            self._poison(group, [-1])
        output = self.program.step(self.step(bucket, rows, choice))
        self.device.synchronize()
        return output

    def step(self, bucket: Bucket, rows: Sequence[ProgramRow], choice: ChoiceBatch | None = None) -> ProgramStep:
        """Lay out a step and fill it up."""
        counts = [len(row.tokens) for row in rows]
        spans = [range(row.start, row.start + count) for row, count in zip(rows, counts, strict=True)]
        return ProgramStep(
            bucket=bucket,
            token_ids=self._filled([token for row in rows for token in row.tokens], bucket.tokens),
            positions=self._filled([position for span in spans for position in span], bucket.tokens),
            seq_lens=self._filled([span.stop for span in spans], bucket.requests).int(),
            last_tokens=self._filled((np.cumsum(counts) - 1).tolist(), bucket.requests),
            block_tables=tuple(self._table(group, bucket, rows) for group in range(len(self.pools))),
            slot_mappings=tuple(self._slots(group, bucket, rows) for group in range(len(self.pools))),
            choice=choice,
        )

    def export(self, group: int, block_ids: Sequence[int]) -> Tensor:
        """Return the bytes of blocks."""
        out = torch.empty(len(block_ids), self.device.bytes_per_block(self.kv_specs[group]), dtype=torch.uint8)
        self.device.export_blocks(self.pools[group], block_ids, out)
        self.device.synchronize()
        return out

    def _table(self, group: int, bucket: Bucket, rows: Sequence[ProgramRow]) -> Tensor:
        """Return the group's block table; a block left of a window is nobody's any more."""
        size, window = self.kv_specs[group].block_size, self._groups[group].sliding_window
        table = np.full((bucket.requests, bucket.context // size), -1, np.int32)
        for index, row in enumerate(rows):
            used = -(-(row.start + len(row.tokens)) // size)
            gone = 0 if window is None else max(0, row.start - window + 1) // size
            table[index, gone:used] = row.blocks[group][gone:used]
        return torch.from_numpy(table).to(self.device.torch_device)

    def _slots(self, group: int, bucket: Bucket, rows: Sequence[ProgramRow]) -> Tensor:
        size = self.kv_specs[group].block_size
        slots = [
            row.blocks[group][position // size] * size + position % size
            for row in rows
            for position in range(row.start, row.start + len(row.tokens))
        ]
        return self._filled(slots, bucket.tokens, -1)

    def _filled(self, values: Sequence[int], size: int, filler: int = 0) -> Tensor:
        filled = [*values, *(size - len(values)) * [filler]]
        return torch.tensor(filled, dtype=torch.int64, device=self.device.torch_device)

    def _poison(self, group: int, slots: Sequence[int]) -> None:
        spec = self.kv_specs[group]
        for start in range(0, len(slots), self._write_size):
            part = self._filled(slots[start : start + self._write_size], self._write_size, -1)
            key = self._nan(spec, spec.head_size)
            value = self._nan(spec, spec.value_head_size)
            for layer in range(spec.num_layers):
                self.device.write_kv(self.pools[group], layer, key, value, part, AttentionParams(scale=1.0))

    def _nan(self, spec: KVSpec, size: int) -> Any:
        shape = (self._write_size, spec.num_kv_heads, size)
        return torch.full(shape, torch.nan, dtype=self._dtype, device=self.device.torch_device)
