"""Devices whose cache is wrong."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pageport.backend import AttentionParams, Backend, Capabilities, KVSpec
from pageport.backend.batch import AttentionBatch
from pageport.backend.reference import kv as reference_kv
from pageport.errors import UnsupportedFeature
from pageport.testing.conformance import Level
from pageport_cpu.device import CpuDevice
from pageport_cpu.plugin import CpuBackend


def backend_with(device: Callable[[], CpuDevice]) -> type[Backend]:
    """Return a backend whose device is of this class."""
    return type("WrongBackend", (CpuBackend,), {"open": lambda self, ordinal, options, rank=None: device()})


class CopiesOneLayer(CpuDevice):
    def copy_blocks(self, pool: Any, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            for stored in (pool.key, pool.value):
                stored[0, target] = stored[0, source]


class CopiesKeysOnly(CpuDevice):
    def copy_blocks(self, pool: Any, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            pool.key[:, target] = pool.key[:, source]


class CopiesAllAtOnce(CpuDevice):
    """Reads every source before it writes any target."""

    def copy_blocks(self, pool: Any, pairs: Sequence[tuple[int, int]]) -> None:
        sources = [source for source, _ in pairs]
        for stored in (pool.key, pool.value):
            read = stored[:, sources].clone()
            for number, (_, target) in enumerate(pairs):
                stored[:, target] = read[:, number]


class CopiesBackwards(CpuDevice):
    def copy_blocks(self, pool: Any, pairs: Sequence[tuple[int, int]]) -> None:
        for pair in reversed(pairs):
            super().copy_blocks(pool, [pair])


class CopiesToNeighbour(CpuDevice):
    def copy_blocks(self, pool: Any, pairs: Sequence[tuple[int, int]]) -> None:
        super().copy_blocks(pool, [*pairs, *((source, max(0, target - 1)) for source, target in pairs)])


class WritesPaddingToLastSlot(CpuDevice):
    """Takes -1 for an index from the end of the blocks that core knows."""

    def write_kv(
        self, pool: Any, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor, params: AttentionParams
    ) -> None:
        slots = slot_mapping % ((pool.key.shape[1] - 1) * pool.spec.block_size)
        super().write_kv(pool, layer, key, value, slots, params)


class WritesPaddingToSlotZero(CpuDevice):
    def write_kv(
        self, pool: Any, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor, params: AttentionParams
    ) -> None:
        super().write_kv(pool, layer, key, value, slot_mapping.clamp(min=0), params)


class IgnoresStrides(CpuDevice):
    def write_kv(
        self, pool: Any, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor, params: AttentionParams
    ) -> None:
        key, value = (torch.as_strided(part, part.shape, part.new_empty(part.shape).stride()) for part in (key, value))
        super().write_kv(pool, layer, key, value, slot_mapping, params)


class WritesHeadsInReverse(CpuDevice):
    def write_kv(
        self, pool: Any, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor, params: AttentionParams
    ) -> None:
        super().write_kv(pool, layer, key, value.flip(1), slot_mapping, params)


class WritesFirstLayerOnly(CpuDevice):
    def write_kv(
        self, pool: Any, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor, params: AttentionParams
    ) -> None:
        super().write_kv(pool, 0, key, value, slot_mapping, params)


class SharesPools(CpuDevice):
    pool: Any = None

    def allocate_kv(self, spec: KVSpec, num_blocks: int) -> Any:
        pool = super().allocate_kv(spec, num_blocks)
        if self.pool is None or self.pool.key.shape != pool.key.shape or self.pool.spec != spec:
            self.pool = pool
        return self.pool

    def free_kv(self, pool: Any) -> None:
        pass


class ImportsOneLayer(CpuDevice):
    def import_blocks(self, pool: Any, block_ids: Sequence[int], data: Tensor) -> None:
        kept = pool.key[1:].clone()
        super().import_blocks(pool, block_ids, data)
        pool.key[1:] = kept


class ExportsSorted(CpuDevice):
    def export_blocks(self, pool: Any, block_ids: Sequence[int], out: Tensor) -> None:
        super().export_blocks(pool, sorted(block_ids), out)


class AcceptsAnyCache(CpuDevice):
    """Declares few kinds and dtypes, and checks neither."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    def allocate_kv(self, spec: KVSpec, num_blocks: int) -> Any:
        reference_kv.check_memory(spec, num_blocks, self.memory())
        return reference_kv.allocate_kv(spec, num_blocks, self.torch_device)


class NamesNotWhatItRefuses(CpuDevice):
    def allocate_kv(self, spec: KVSpec, num_blocks: int) -> Any:
        try:
            return super().allocate_kv(spec, num_blocks)
        except UnsupportedFeature:
            raise UnsupportedFeature("Not supported.") from None


class TakesBucketsOnly(CpuDevice):
    """Is compiled for a few shapes: nothing wrong with that."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(
            super().capabilities, static_shapes=True, token_buckets=(1, 8, 32), request_buckets=(2,), block_sizes=(16,)
        )

    def write_kv(
        self, pool: Any, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor, params: AttentionParams
    ) -> None:
        self._check(len(slot_mapping))
        super().write_kv(pool, layer, key, value, slot_mapping, params)

    def linear(self, weight: Any, x: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        self._check(len(x))
        return super().linear(weight, x, bias, out)

    def embed(self, weight: Any, token_ids: Tensor, out: Tensor | None = None) -> Tensor:
        self._check(len(token_ids))
        return super().embed(weight, token_ids, out)

    def attention(
        self, pool: Any, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
    ) -> None:
        self._check(batch.num_tokens)
        assert batch.num_requests == 2
        super().attention(pool, layer, query, params, batch, out)

    def _check(self, count: int) -> None:
        assert count in self.capabilities.token_buckets, f"no program for {count} tokens"


CORRECT = [
    ("takes buckets only", backend_with(TakesBucketsOnly), level) for level in (Level.MEMORY, Level.KV_AND_WEIGHTS)
]
WRONG = [
    (name, backend_with(device), Level.KV_AND_WEIGHTS, words)
    for name, device, words in [
        ("copies one layer", CopiesOneLayer, "left out layer 1, 2 of 3"),
        ("copies keys only", CopiesKeysOnly, "keys and values"),
        ("copies all at once", CopiesAllAtOnce, "the second copy must see what the first one wrote"),
        ("copies backwards", CopiesBackwards, "instead of that of block"),
        ("copies to the neighbour, too", CopiesToNeighbour, "copying block 2 to 5 changed block 4, too"),
        ("padding goes to the last slot", WritesPaddingToLastSlot, "padding (slot -1) in a step changed block 6"),
        ("padding goes to slot 0", WritesPaddingToSlotZero, "nothing but padding (slot -1) changed block 0"),
        ("ignores strides", IgnoresStrides, "are the strides of the tensors ignored?"),
        ("reverses heads", WritesHeadsInReverse, "Was it written to another slot, head or layer"),
        ("writes the first layer only", WritesFirstLayerOnly, "is not found under its key"),
        ("shares pools", SharesPools, "do pools share storage?"),
        ("imports one layer's keys", ImportsOneLayer, "does not hold the bytes imported into it"),
        ("exports in ascending order", ExportsSorted, "is the order of ids kept?"),
        ("accepts an undeclared dtype", AcceptsAnyCache, "accepts a cache with dtype float16"),
        ("accepts an undeclared kind", AcceptsAnyCache, "accepts a cache with kind sliding"),
        ("accepts an undeclared block size", AcceptsAnyCache, "accepts a cache with block size 24"),
        ("names not what it refuses", NamesNotWhatItRefuses, "does not name 24: Not supported."),
    ]
]
