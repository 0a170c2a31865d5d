"""``AcceleratorDevice``: the Triton kernels on a GPU that torch drives: memory, streams, swapping."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pageport.backend import Capabilities, KVSpec, Memory
from pageport_triton.accelerator import Accelerator
from pageport_triton.kv_arena import KVArena
from pageport_triton.swap_arena import SwapArena
from pageport_triton.triton_device import TritonDevice


class AcceleratorDevice(TritonDevice):
    """One GPU."""

    def __init__(
        self, accelerator: Accelerator, torch_device: torch.device, architecture: str, collective_backend: str
    ) -> None:
        """Take the device as it is; nothing is allocated yet.

        Args:
            architecture: the class of architectures in the tables of configurations.
            collective_backend: its name in torch.distributed.
        """
        super().__init__(torch_device, architecture)
        self._accelerator = accelerator
        self._arena = KVArena()
        self._swap = SwapArena(accelerator, torch_device)
        self._with_streams = replace(super().capabilities, pipeline_depth=1, collective_backend=collective_backend)

    @property
    def capabilities(self) -> Capabilities:
        return self._with_streams

    def memory(self) -> Memory:
        free, total = self._accelerator.free_and_total()
        held = self._accelerator.allocator_bytes()
        # What torch's allocator keeps for later is ours to use.
        return Memory(total=total, free=free + held.reserved - held.allocated, reserved_by_this_process=held.reserved)

    def synchronize(self) -> None:
        self._accelerator.synchronize()

    def fetch(self, tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
        return self._accelerator.fetch(tensors)

    # --- KV cache ----------------------------------------------------------------------------------------------

    def allocate_kv(self, spec: KVSpec, num_blocks: int) -> Any:
        pool = super().allocate_kv(spec, num_blocks)
        for memory in self.memories(pool):
            self._arena.add(memory)
        return pool

    def free_kv(self, pool: Any) -> None:
        for memory in self.memories(pool):
            self._arena.remove(memory)
        super().free_kv(pool)
        self._accelerator.release_unused()

    def memories(self, pool: Any) -> Sequence[Tensor]:
        """Return the tensors that own a pool's memory."""
        return [pool.memory]

    def export_blocks(self, pool: Any, block_ids: Sequence[int], out: Tensor) -> None:
        def gather(ids: Sequence[int], rows: Tensor) -> None:
            super(AcceleratorDevice, self).export_blocks(pool, ids, rows)

        self._swap.to_host(gather, block_ids, out)

    def import_blocks(self, pool: Any, block_ids: Sequence[int], data: Tensor) -> None:
        def scatter(ids: Sequence[int], rows: Tensor) -> None:
            super(AcceleratorDevice, self).import_blocks(pool, ids, rows)

        self._swap.to_device(scatter, block_ids, data)

    def sleep(self) -> None:
        """Give the KV cache's memory back to the driver; its contents, and whatever was captured, are lost."""
        self._accelerator.synchronize()
        self._arena.sleep()
        self._swap.close()
        self._accelerator.release_unused()

    def wake(self) -> None:
        """Take the KV cache's memory again, empty."""
        self._arena.wake()

    def close(self) -> None:
        self._accelerator.synchronize()
        self._swap.close()
        self._accelerator.release_unused()
