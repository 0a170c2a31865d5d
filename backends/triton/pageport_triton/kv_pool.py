"""``TritonKVPool``: keys and values of one cache group as one tensor of bytes, with typed views of each layer."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from jaxtyping import UInt8
from torch import Tensor

from pageport.backend.kv import KVSpec
from pageport.errors import OutOfMemory, UnsupportedFeature

# As torch names them. int8 keeps a float32 scale for each token and KV head.
KV_DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8")
# Powers of two, so that finding a key's block is a shift; every part of a block is then a multiple of 16 bytes.
BLOCK_SIZES = (16, 32, 64, 128, 256)
LARGEST_HEAD = 256
SCALE_BYTES = 4
INDEX_BITS = 63


class LayerPart(NamedTuple):
    """Where one layer of a block keeps what, in bytes from its start."""

    keys: int  # [kv_heads, block_size, head_size]
    values: int  # [kv_heads, block_size, value_head_size]
    key_scales: int  # [kv_heads, block_size] float32; of int8 only
    value_scales: int
    end: int


class LayerStorage(NamedTuple):
    """One layer: flat views that begin where block 0 keeps its part; 8-bit floats are bytes."""

    key: Tensor
    value: Tensor
    key_scale: Tensor | None
    value_scale: Tensor | None


@dataclass(slots=True)
class TritonKVPool:
    """``memory`` uint8 [layers, blocks, bytes of one layer of a block]; of these ``LayerPart`` says what is where.

    One head's tokens of a block lie together, so that a program reads whole runs of ``block_size * head_size`` numbers.
    Layers are outermost: a step's kernel then touches the memory of one layer only, which the address translation of
    a device covers, and copying a block moves one run of bytes a layer, scales included.
    """

    spec: KVSpec
    memory: Tensor
    layers: list[LayerStorage]

    @property
    def block_stride(self) -> int:
        """Return how far blocks are apart, in stored numbers."""
        return layer_part(self.spec).end // stored_dtype(self.spec).itemsize

    @property
    def scale_block_stride(self) -> int:
        """Return how far blocks are apart, in scales."""
        return layer_part(self.spec).end // SCALE_BYTES


def stored_dtype(spec: KVSpec) -> torch.dtype:
    """Return the dtype of the views: kernels decode 8-bit floats from bytes."""
    dtype: torch.dtype = torch.uint8 if spec.dtype.startswith("float8") else getattr(torch, spec.dtype)
    return dtype


def layer_part(spec: KVSpec) -> LayerPart:
    """Return the places of what one layer of a block holds."""
    tokens = spec.num_kv_heads * spec.block_size
    itemsize = stored_dtype(spec).itemsize
    scales = tokens * SCALE_BYTES if spec.dtype == "int8" else 0
    return LayerPart(
        0, *accumulate((tokens * spec.head_size * itemsize, tokens * spec.value_head_size * itemsize, scales, scales))
    )


def bytes_per_block(spec: KVSpec) -> int:
    """Return the bytes one block takes over all layers, scales included."""
    return spec.num_layers * layer_part(spec).end


def allocate_kv(spec: KVSpec, num_blocks: int, device: torch.device) -> TritonKVPool:
    """Allocate a pool; its memory is left as it is.

    Raises:
        OutOfMemory: the allocator refuses.
        UnsupportedFeature: a dtype, block size or head size that the kernels do not know.
    """
    _check(spec)
    refusal = OutOfMemory(
        f"{device} refuses a KV cache of {num_blocks} blocks of {bytes_per_block(spec)} bytes. "
        "Lower the number of blocks or the context."
    )
    if num_blocks * bytes_per_block(spec) >= 2**INDEX_BITS:
        raise refusal
    try:
        memory = torch.empty(spec.num_layers, num_blocks, layer_part(spec).end, dtype=torch.uint8, device=device)
    except (RuntimeError, MemoryError) as error:
        raise refusal from error
    return TritonKVPool(spec, memory, [_storage(spec, layer.flatten()) for layer in memory])


def free_kv(pool: TritonKVPool) -> None:
    """Drop the memory."""
    pool.memory = torch.empty(0, 0, 0, dtype=torch.uint8)
    pool.layers = []


def export_blocks(pool: TritonKVPool, block_ids: Sequence[int], out: UInt8[Tensor, "blocks bytes_per_block"]) -> None:
    """Copy blocks to host memory: of each, one layer after the other."""
    gathered = pool.memory.index_select(1, _indices(pool, block_ids))
    out.copy_(gathered.transpose(0, 1).flatten(1))


def import_blocks(pool: TritonKVPool, block_ids: Sequence[int], data: UInt8[Tensor, "blocks bytes_per_block"]) -> None:
    """Copy what ``export_blocks`` wrote into blocks, maybe others."""
    num_layers, _, layer_bytes = pool.memory.shape
    rows = data.to(pool.memory.device).view(len(block_ids), num_layers, layer_bytes)
    pool.memory.index_copy_(1, _indices(pool, block_ids), rows.transpose(0, 1))


def _indices(pool: TritonKVPool, block_ids: Sequence[int]) -> Tensor:
    return torch.tensor(block_ids, dtype=torch.int64, device=pool.memory.device)


def _storage(spec: KVSpec, layer: Tensor) -> LayerStorage:
    part, dtype = layer_part(spec), stored_dtype(spec)
    key, value = layer[part.keys :].view(dtype), layer[part.values :].view(dtype)
    if spec.dtype != "int8":
        return LayerStorage(key, value, None, None)
    scales = (layer[start:].view(torch.float32) for start in (part.key_scales, part.value_scales))
    return LayerStorage(key, value, *scales)


def _check(spec: KVSpec) -> None:
    if spec.dtype not in KV_DTYPES:
        raise UnsupportedFeature(
            f"The Triton kernels keep no KV cache of {spec.dtype}; use one of {', '.join(KV_DTYPES)}."
        )
    if spec.block_size not in BLOCK_SIZES:
        raise UnsupportedFeature(
            f"The Triton kernels keep no KV blocks of {spec.block_size} tokens; "
            f"use one of {', '.join(map(str, BLOCK_SIZES))}."
        )
    largest = max(spec.head_size, spec.value_head_size)
    if largest > LARGEST_HEAD:
        raise UnsupportedFeature(
            f"The Triton kernels' KV cache takes heads of up to {LARGEST_HEAD} features, not {largest}."
        )
