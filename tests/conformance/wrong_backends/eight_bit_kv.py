"""Devices whose 8-bit caches are wrong."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from pageport.backend import AttentionParams, Backend
from pageport.backend.batch import AttentionBatch
from pageport.testing.conformance import Level
from pageport_cpu.device import CpuDevice
from pageport_cpu.plugin import CpuBackend


def backend_with(device: Callable[[], CpuDevice]) -> type[Backend]:
    """Return a backend whose device is of this class."""
    return type("WrongBackend", (CpuBackend,), {"open": lambda self, ordinal, options, rank=None: device()})


class WritesOtherNumbers(CpuDevice):
    """``changed`` says what is written in place of a key or a value."""

    def write_kv(
        self, pool: Any, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor, params: AttentionParams
    ) -> None:
        changed = (self.changed(part, pool.spec.dtype) for part in (key, value))
        super().write_kv(pool, layer, *changed, slot_mapping, params)

    def changed(self, numbers: Tensor, dtype: str) -> Tensor:
        raise NotImplementedError


class OverflowsToNaN(WritesOtherNumbers):
    """What a plain conversion to e4m3 does on some machines."""

    def changed(self, numbers: Tensor, dtype: str) -> Tensor:
        return numbers.masked_fill(numbers.abs() > 464, torch.nan) if dtype == "float8_e4m3fn" else numbers


class WrapsAround(WritesOtherNumbers):
    def changed(self, numbers: Tensor, dtype: str) -> Tensor:
        return numbers % 57344 if dtype == "float8_e5m2" else numbers


class RoundsTowardsZero(WritesOtherNumbers):
    """Cuts off a float's last bits, by which e4m3 is one of 16 steps and e5m2 one of 8 below a power of two."""

    def changed(self, numbers: Tensor, dtype: str) -> Tensor:
        bits = {"float8_e4m3fn": 20, "float8_e5m2": 21}.get(dtype, 0)
        return (numbers.float().view(torch.int32) >> bits << bits).view(torch.float32).to(numbers)


class LosesNaN(WritesOtherNumbers):
    def changed(self, numbers: Tensor, dtype: str) -> Tensor:
        return numbers.nan_to_num(0.0) if dtype == "int8" else numbers


class HasOneScaleAStep(CpuDevice):
    """Rounds by each token's own largest number, and keeps the largest of all."""

    def write_kv(
        self, pool: Any, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor, params: AttentionParams
    ) -> None:
        super().write_kv(pool, layer, key, value, slot_mapping, params)
        if pool.value_scale is not None:
            blocks, offsets = slot_mapping // pool.spec.block_size, slot_mapping % pool.spec.block_size
            pool.value_scale[layer][blocks, :, offsets] = value.float().abs().amax() / 127


class DividesByZero(CpuDevice):
    def write_kv(
        self, pool: Any, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor, params: AttentionParams
    ) -> None:
        super().write_kv(pool, layer, key, value, slot_mapping, params)
        if pool.key_scale is not None:
            for scale in (pool.key_scale, pool.value_scale):
                scale.masked_fill_(scale == 0, torch.nan)


class ReadsWithoutScale(CpuDevice):
    def attention(
        self, pool: Any, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
    ) -> None:
        scale = pool.value_scale
        if scale is not None:
            pool.value_scale = torch.ones_like(scale)
        super().attention(pool, layer, query, params, batch, out)
        pool.value_scale = scale


class CopiesWithoutScale(CpuDevice):
    def copy_blocks(self, pool: Any, pairs: Sequence[tuple[int, int]]) -> None:
        before = None if pool.key_scale is None else pool.key_scale.clone()
        super().copy_blocks(pool, pairs)
        pool.key_scale = before


class ImportsWithoutScale(CpuDevice):
    def import_blocks(self, pool: Any, block_ids: Sequence[int], data: Tensor) -> None:
        before = None if pool.value_scale is None else pool.value_scale.clone()
        super().import_blocks(pool, block_ids, data)
        pool.value_scale = before


WRONG = [
    *(
        (name, backend_with(device), Level.KV_AND_WEIGHTS, words)
        for name, device, words in [
            ("e4m3 overflows to NaN", OverflowsToNaN, "a cache in float8_e4m3fn, comes back as nan instead of 448"),
            ("e5m2 wraps around", WrapsAround, "instead of 57344, the largest number it has: saturate"),
            ("8-bit floats are cut off", RoundsTowardsZero, "or rounded too far?"),
            ("int8 loses NaN", LosesNaN, "does rounding lose NaN?"),
            ("int8 with one scale a step", HasOneScaleAStep, "scaled by another token's or head's largest number"),
            ("int8 divides by zero", DividesByZero, "of head 0 are zeros"),
            ("int8 is read without scale", ReadsWithoutScale, "read without its token's scale"),
            ("int8 is copied without scale", CopiesWithoutScale, "and their scales if it keeps any"),
            ("int8 is imported without scale", ImportsWithoutScale, "does not hold the bytes imported into it"),
        ]
    ),
    ("8-bit floats are cut off, in attention", backend_with(RoundsTowardsZero), Level.ATTENTION, "over float8_e5m2"),
    ("int8 is read without scale, in attention", backend_with(ReadsWithoutScale), Level.ATTENTION, "over int8"),
]
