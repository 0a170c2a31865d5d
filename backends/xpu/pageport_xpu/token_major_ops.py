"""``TokenMajorOps``: a KV cache that keeps a token's heads together, as Intel's attention kernels read it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pageport.backend import AttentionParams, KVSpec
from pageport.backend.coverage import check_kv
from pageport.backend.device import Device
from pageport.backend.reference.kv import ReferenceKVPool, check_memory
from pageport.errors import OutOfMemory
from pageport_triton.triton_device import TritonDevice


class TokenMajorOps(TritonDevice):
    """The Triton kernels but for those that know where a pool keeps what.

    Its pool is core's with the axes [layers, blocks + 1, block_size, kv_heads, head_size]: what moves whole blocks is
    core's, too. The last block takes what is written to slot -1.
    """

    def bytes_per_block(self, spec: KVSpec) -> int:
        return Device.bytes_per_block(self, spec)

    def allocate_kv(self, spec: KVSpec, num_blocks: int) -> Any:
        check_kv(self.capabilities, spec)
        check_memory(spec, num_blocks, self.memory())
        shape = (spec.num_layers, num_blocks + 1, spec.block_size, spec.num_kv_heads)
        dtype: torch.dtype = getattr(torch, spec.dtype)
        sizes = (spec.head_size, spec.value_head_size)
        try:
            key, value = (torch.empty(*shape, size, dtype=dtype, device=self.torch_device) for size in sizes)
        except (RuntimeError, MemoryError) as error:
            raise OutOfMemory(
                f"{self.torch_device} refuses a KV cache of {num_blocks} blocks ({error}). "
                "Lower the number of blocks or the context."
            ) from error
        return ReferenceKVPool(spec, key, value)

    def free_kv(self, pool: Any) -> None:
        Device.free_kv(self, pool)

    def write_kv(
        self, pool: Any, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor, params: AttentionParams
    ) -> None:
        for given, stored in ((key, pool.key[layer]), (value, pool.value[layer])):
            stored.flatten(0, 1)[slot_mapping] = given.to(stored.dtype)

    # Core's: rope, then write_kv.
    rope_write_kv = Device.rope_write_kv

    def copy_blocks(self, pool: Any, pairs: Sequence[tuple[int, int]]) -> None:
        Device.copy_blocks(self, pool, pairs)

    def export_blocks(self, pool: Any, block_ids: Sequence[int], out: Tensor) -> None:
        Device.export_blocks(self, pool, block_ids, out)

    def import_blocks(self, pool: Any, block_ids: Sequence[int], data: Tensor) -> None:
        Device.import_blocks(self, pool, block_ids, data)
