"""Devices that are wrong about memory."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import torch

from pageport.backend import Backend, KVSpec, Memory
from pageport.errors import OutOfMemory
from pageport.testing.conformance import Level
from pageport_cpu.device import CpuDevice
from pageport_cpu.plugin import CpuBackend


def backend_with(device: Callable[[], CpuDevice]) -> type[Backend]:
    """Return a backend whose device is of this class."""
    return type("WrongBackend", (CpuBackend,), {"open": lambda self, ordinal, options, rank=None: device()})


class SaysMoreIsFreeThanThereIs(CpuDevice):
    def memory(self) -> Memory:
        memory = super().memory()
        return replace(memory, free=memory.total + 1)


class SaysNegative(CpuDevice):
    def memory(self) -> Memory:
        return replace(super().memory(), free=-1)


class SaysAlwaysTheSame(CpuDevice):
    def memory(self) -> Memory:
        return Memory(total=2**34, free=2**33, reserved_by_this_process=2**30)


class SaysTheSameIsFree(CpuDevice):
    def memory(self) -> Memory:
        return replace(super().memory(), free=2**32)


class SaysTotalIsFree(CpuDevice):
    """Promises what it then refuses."""

    def memory(self) -> Memory:
        memory = super().memory()
        return replace(memory, free=memory.total)

    def allocate_kv(self, spec: KVSpec, num_blocks: int) -> Any:
        if num_blocks * self.bytes_per_block(spec) > self.memory().total // 3:
            raise OutOfMemory(f"{num_blocks} blocks are too many.")
        return super().allocate_kv(spec, num_blocks)


class CountsKeysOnly(CpuDevice):
    def bytes_per_block(self, spec: KVSpec) -> int:
        return super().bytes_per_block(spec) // 2


class CountsTooMuch(CpuDevice):
    """Counts half again what its blocks fill."""

    def bytes_per_block(self, spec: KVSpec) -> int:
        return super().bytes_per_block(spec) * 3 // 2


class LeaksOnFree(CpuDevice):
    def __init__(self) -> None:
        super().__init__()
        self.held: list[torch.Tensor] = []

    def free_kv(self, pool: Any) -> None:
        self.held += [pool.key, pool.value]
        super().free_kv(pool)


class CrashesWhenFull(CpuDevice):
    def allocate_kv(self, spec: KVSpec, num_blocks: int) -> Any:
        try:
            return super().allocate_kv(spec, num_blocks)
        except OutOfMemory as error:
            raise RuntimeError("allocator: error 2") from error


class GivesLessThanAsked(CpuDevice):
    def allocate_kv(self, spec: KVSpec, num_blocks: int) -> Any:
        return super().allocate_kv(spec, min(num_blocks, 2**16))


class ClosesOnce(CpuDevice):
    is_closed: ClassVar[bool] = False

    def close(self) -> None:
        if self.is_closed:
            raise RuntimeError("already closed")
        self.is_closed = True  # type: ignore[misc]


WRONG = [
    (name, backend_with(device), Level.MEMORY, words)
    for name, device, words in [
        ("more free than there is", SaysMoreIsFreeThanThereIs, "are free: more than all"),
        ("negative memory", SaysNegative, "free is negative: -1"),
        ("constant memory", SaysAlwaysTheSame, "reserved_by_this_process hardly moved"),
        ("constant free memory", SaysTheSameIsFree, "memory().free hardly moved"),
        ("free memory that is refused", SaysTotalIsFree, "half of that is refused"),
        ("bytes of keys only", CountsKeysOnly, "are all layers, keys and values counted?"),
        ("bytes beyond the block", CountsTooMuch, "bytes unwritten"),
        ("leaks on free", LeaksOnFree, "have not come back"),
        ("crashes when full", CrashesWhenFull, "instead of OutOfMemory"),
        ("less than asked for", GivesLessThanAsked, "raise OutOfMemory, or the first step"),
        ("closes only once", ClosesOnce, "close() called twice raised RuntimeError"),
    ]
]
