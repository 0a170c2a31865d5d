"""``ReferenceKVPool``: keys and values of one cache group as two plain tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from pageport.backend.kv import AttentionParams, KVSpec, Memory
from pageport.backend.reference.dtypes import torch_dtype
from pageport.errors import OutOfMemory, UnsupportedFeature


@dataclass(slots=True)
class ReferenceKVPool:
    """``key`` and ``value`` [layers, blocks + 1, kv_heads, block_size, head_size or value_head_size].

    A block keeps one head's tokens together, so that gathering blocks yields matrices. The last block takes what is
    written to slot -1: padding then needs no test of the slots, which would wait for the device.
    """

    spec: KVSpec
    key: Tensor
    value: Tensor


def bytes_per_block(spec: KVSpec) -> int:
    """Return the bytes one block takes over all layers."""
    values = spec.num_layers * spec.block_size * spec.num_kv_heads * (spec.head_size + spec.value_head_size)
    return values * torch_dtype(spec.dtype).itemsize


def check_memory(spec: KVSpec, num_blocks: int, memory: Memory) -> None:
    """Check that a pool fits into what is free.

    Raises:
        OutOfMemory: it does not; says how many blocks would.
    """
    # One block more than asked for: see ``ReferenceKVPool``.
    needed = (num_blocks + 1) * bytes_per_block(spec)
    if needed > memory.free:
        raise OutOfMemory(
            f"A KV cache of {num_blocks} blocks of {bytes_per_block(spec)} bytes takes {needed / 2**30:.2f} GiB with "
            f"the one for padding; {memory.free / 2**30:.2f} GiB of {memory.total / 2**30:.2f} GiB are free. "
            f"At most {max(0, memory.free // bytes_per_block(spec) - 1)} blocks fit."
        )


def allocate_kv(spec: KVSpec, num_blocks: int, device: torch.device) -> ReferenceKVPool:
    """Allocate a pool; its memory is left untouched, so that pages nobody uses are never backed.

    Raises:
        OutOfMemory: the allocator refuses.
        UnsupportedFeature: a dtype that the reference does not know.
    """
    shape = (spec.num_layers, num_blocks + 1, spec.num_kv_heads, spec.block_size)
    dtype = torch_dtype(spec.dtype)
    try:
        key = torch.empty(*shape, spec.head_size, dtype=dtype, device=device)
        value = torch.empty(*shape, spec.value_head_size, dtype=dtype, device=device)
    except (RuntimeError, MemoryError) as error:
        raise OutOfMemory(
            f"{device} refuses a KV cache of {num_blocks} blocks of {bytes_per_block(spec)} bytes "
            f"({error}). Lower the number of blocks or the context."
        ) from error
    return ReferenceKVPool(spec, key, value)


def free_kv(pool: ReferenceKVPool) -> None:
    """Drop the tensors."""
    pool.key = pool.value = torch.empty(0)


def write_kv(
    pool: ReferenceKVPool,
    layer: int,
    key: Float[Tensor, "tokens kv_heads head_size"],
    value: Float[Tensor, "tokens kv_heads value_head_size"],
    slot_mapping: Int64[Tensor, "tokens"],
    params: AttentionParams,
) -> None:
    """Store this step's keys and values at their slots."""
    if params.k_scale is not None or params.v_scale is not None:
        raise UnsupportedFeature("The plain-torch KV cache is not quantised; it takes no k_scale and no v_scale.")
    block_size = pool.spec.block_size
    # Slot -1 becomes block -1, the last.
    blocks = slot_mapping.div(block_size, rounding_mode="floor")
    offsets = slot_mapping.remainder(block_size)
    pool.key[layer][blocks, :, offsets] = key.to(pool.key.dtype)
    pool.value[layer][blocks, :, offsets] = value.to(pool.value.dtype)


def copy_blocks(pool: ReferenceKVPool, pairs: Sequence[tuple[int, int]]) -> None:
    """Copy blocks as if one after the other: a block copied earlier in ``pairs`` is copied on with its new content."""
    # What each target holds in the end is the first content of one block; all of these are read before any is written.
    origins: dict[int, int] = {}
    for source, target in pairs:
        origins[target] = origins.get(source, source)
    if not origins:
        return
    targets = torch.tensor(list(origins.keys()), device=pool.key.device)
    sources = torch.tensor(list(origins.values()), device=pool.key.device)
    for stored in (pool.key, pool.value):
        for layer in stored:
            layer.index_copy_(0, targets, layer.index_select(0, sources))


def export_blocks(
    pool: ReferenceKVPool, block_ids: Sequence[int], out: UInt8[Tensor, "blocks bytes_per_block"]
) -> None:
    """Copy blocks to host memory: of each, the keys of every layer, then the values."""
    blocks = torch.tensor(block_ids, dtype=torch.int64, device=pool.key.device)
    for layer, columns in _layer_bytes(pool, out):
        columns.copy_(layer.index_select(0, blocks).flatten(1).view(torch.uint8))


def import_blocks(
    pool: ReferenceKVPool, block_ids: Sequence[int], data: UInt8[Tensor, "blocks bytes_per_block"]
) -> None:
    """Copy what ``export_blocks`` wrote into blocks, maybe others."""
    blocks = torch.tensor(block_ids, dtype=torch.int64, device=pool.key.device)
    for layer, columns in _layer_bytes(pool, data):
        content = columns.contiguous().view(layer.dtype).to(layer.device)
        layer.index_copy_(0, blocks, content.view(len(block_ids), *layer.shape[1:]))


def _layer_bytes(pool: ReferenceKVPool, data: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Pair each layer of keys, then of values, with the columns of ``data`` that hold its bytes."""
    pairs = []
    start = 0
    for layer in (*pool.key, *pool.value):
        end = start + layer[0].nbytes
        pairs.append((layer, data[:, start:end]))
        start = end
    return pairs
