"""``ReferenceKVPool``: keys and values of one cache group as two plain tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from pageport.backend.kv import AttentionParams, KVSpec, Memory
from pageport.backend.reference.dtypes import torch_kv_dtype
from pageport.backend.reference.kv_rounding import to_float8, to_int8
from pageport.errors import OutOfMemory, UnsupportedFeature


@dataclass(slots=True)
class ReferenceKVPool:
    """``key`` and ``value`` [layers, blocks + 1, kv_heads, block_size, head_size or value_head_size].

    A block keeps one head's tokens together, so that gathering blocks yields matrices. The last block takes what is
    written to slot -1: padding then needs no test of the slots, which would wait for the device.

    With int8 each token's and head's numbers have a float32 scale [layers, blocks + 1, kv_heads, block_size].
    """

    spec: KVSpec
    key: Tensor
    value: Tensor
    key_scale: Tensor | None = None
    value_scale: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """All that blocks consist of; the first axis is layers, the second blocks."""
        scales = () if self.key_scale is None or self.value_scale is None else (self.key_scale, self.value_scale)
        return [self.key, self.value, *scales]


def bytes_per_block(spec: KVSpec) -> int:
    """Return the bytes one block takes over all layers."""
    dtype = torch_kv_dtype(spec.dtype)
    bytes_per_head = (spec.head_size + spec.value_head_size) * dtype.itemsize
    if dtype == torch.int8:
        bytes_per_head += 2 * torch.float32.itemsize
    return spec.num_layers * spec.block_size * spec.num_kv_heads * bytes_per_head


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
    dtype = torch_kv_dtype(spec.dtype)
    try:
        pool = ReferenceKVPool(
            spec,
            key=torch.empty(*shape, spec.head_size, dtype=dtype, device=device),
            value=torch.empty(*shape, spec.value_head_size, dtype=dtype, device=device),
        )
        if dtype == torch.int8:
            pool.key_scale = torch.empty(shape, dtype=torch.float32, device=device)
            pool.value_scale = torch.empty_like(pool.key_scale)
    except (RuntimeError, MemoryError) as error:
        raise OutOfMemory(
            f"{device} refuses a KV cache of {num_blocks} blocks of {bytes_per_block(spec)} bytes "
            f"({error}). Lower the number of blocks or the context."
        ) from error
    return pool


def free_kv(pool: ReferenceKVPool) -> None:
    """Drop the tensors."""
    pool.key = pool.value = torch.empty(0)
    pool.key_scale = pool.value_scale = None


def write_kv(
    pool: ReferenceKVPool,
    layer: int,
    key: Float[Tensor, "tokens kv_heads head_size"],
    value: Float[Tensor, "tokens kv_heads value_head_size"],
    slot_mapping: Int64[Tensor, "tokens"],
    params: AttentionParams,
) -> None:
    """Store this step's keys and values at their slots."""
    _check_scales(pool.spec, params)
    block_size = pool.spec.block_size
    # Slot -1 becomes block -1, the last.
    blocks = slot_mapping.div(block_size, rounding_mode="floor")
    offsets = slot_mapping.remainder(block_size)
    for given, scale, stored, stored_scale in (
        (key, params.k_scale, pool.key, pool.key_scale),
        (value, params.v_scale, pool.value, pool.value_scale),
    ):
        if stored_scale is not None:
            rounded = to_int8(given)
            stored[layer][blocks, :, offsets] = rounded.integers
            stored_scale[layer][blocks, :, offsets] = rounded.scale
        elif stored.itemsize == 1:
            stored[layer][blocks, :, offsets] = to_float8(given, stored.dtype, scale)
        else:
            stored[layer][blocks, :, offsets] = given.to(stored.dtype)


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
    for stored in pool.tensors:
        # As bytes: torch copies 8-bit floats no other way.
        for layer in stored.view(torch.uint8):
            layer.index_copy_(0, targets, layer.index_select(0, sources))


def export_blocks(
    pool: ReferenceKVPool, block_ids: Sequence[int], out: UInt8[Tensor, "blocks bytes_per_block"]
) -> None:
    """Copy blocks to host memory: of each, the keys of every layer, then the values, then their scales."""
    blocks = torch.tensor(block_ids, dtype=torch.int64, device=pool.key.device)
    for layer, columns in _layer_bytes(pool, out):
        columns.copy_(layer.index_select(0, blocks).flatten(1))


def import_blocks(
    pool: ReferenceKVPool, block_ids: Sequence[int], data: UInt8[Tensor, "blocks bytes_per_block"]
) -> None:
    """Copy what ``export_blocks`` wrote into blocks, maybe others."""
    blocks = torch.tensor(block_ids, dtype=torch.int64, device=pool.key.device)
    for layer, columns in _layer_bytes(pool, data):
        layer.index_copy_(0, blocks, columns.to(layer.device).reshape(len(block_ids), *layer.shape[1:]))


def _layer_bytes(pool: ReferenceKVPool, data: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Pair the bytes of each layer of keys, then of values, with their columns of ``data``."""
    pairs = []
    start = 0
    for layer in (layer for stored in pool.tensors for layer in stored.view(torch.uint8)):
        end = start + layer[0].nbytes
        pairs.append((layer, data[:, start:end]))
        start = end
    return pairs


def _check_scales(spec: KVSpec, params: AttentionParams) -> None:
    has_scales = params.k_scale is not None or params.v_scale is not None
    if has_scales and not spec.dtype.startswith("float8"):
        raise UnsupportedFeature(
            f"The plain-torch KV cache in {spec.dtype} takes no k_scale and no v_scale; they are for 8-bit floats."
        )
