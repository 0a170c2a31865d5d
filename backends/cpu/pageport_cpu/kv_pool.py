"""``CpuKVPool``: keys and values of one cache group, laid out for the native attention kernel."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64, UInt8
from torch import Tensor

from pageport.backend import AttentionParams, KVSpec
from pageport.errors import OutOfMemory, UnsupportedFeature
from pageport_cpu.large_pages import map_large_pages
from pageport_cpu.library import DTYPE_CODES, Arguments, Integer, Library, Pointer, pointer

# As torch names them. int8 keeps a float32 scale for each token and KV head.
KV_DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8")
# Of which dtypes keys are rotated before they are rounded.
FEATURES = {"rotated_keys:float8_e5m2": 1}
# A vector of keys lies in one block, and a tile of 64 in whole blocks or in one.
BLOCK_SIZES = (16, 32, 64, 128, 256)
LARGEST_HEAD = 1024
# Kernels read whole vectors, up to this many bytes behind the last value.
SLACK_BYTES = 64


class LayerPart(NamedTuple):
    """Where one layer of a block begins, in bytes from the block's start."""

    keys: int  # [kv_heads, head_size, block_size]; int8: [kv_heads, head_size / 4, block_size, 4]
    values: int  # [kv_heads, block_size, value_head_size]; int8: [kv_heads, block_size / 4, value_head_size, 4]
    key_scales: int  # [kv_heads, block_size] float32; of int8 only
    value_scales: int
    end: int


@dataclass(slots=True)
class CpuKVPool:
    """``memory`` [blocks, bytes_per_block]: of each block its layers, of each layer what ``LayerPart`` says.

    Keys are transposed, so that one vector holds one feature of neighbouring tokens and scores need no sum over lanes;
    of int8, four features or tokens that are summed lie side by side, as the processor multiplies them, keys plus 128.
    Keys of e5m2 are rotated, as ``KVSpec`` describes and ``kernels/rotation.h`` does: rounding them loses half as much.
    All layers of a block lie together: used blocks then share the pages of memory that are backed.
    """

    spec: KVSpec
    memory: Tensor

    def addresses(self, layer: int) -> list[int | None]:
        """Return where keys, values and their scales of one layer lie in block 0; None where there are no scales."""
        part = layer_part(self.spec)
        start = self.memory.data_ptr() + layer * part.end
        has_scales = self.spec.dtype == "int8"
        return [start + part.keys, start + part.values] + [
            start + offset if has_scales else None for offset in (part.key_scales, part.value_scales)
        ]

    @property
    def strides(self) -> tuple[int, int]:
        """Return how far blocks are apart: in stored elements, and in scales."""
        block_bytes = self.memory.stride(0)
        return block_bytes // stored_dtype(self.spec).itemsize, block_bytes // torch.float32.itemsize


class WriteKVArguments(Arguments):
    kernel = "write_kv"
    token_counts = ("tokens",)
    _fields_ = (
        ("key", Pointer),
        ("value", Pointer),
        ("keys", Pointer),
        ("values", Pointer),
        ("key_scales", Pointer),
        ("value_scales", Pointer),
        ("slots", Pointer),
        ("k_scale", Pointer),
        ("v_scale", Pointer),
        ("tokens", Integer),
        ("kv_heads", Integer),
        ("head_size", Integer),
        ("value_head_size", Integer),
        ("block_size", Integer),
        ("key_token_stride", Integer),
        ("key_head_stride", Integer),
        ("value_token_stride", Integer),
        ("value_head_stride", Integer),
        ("block_stride", Integer),
        ("scale_block_stride", Integer),
        ("dtype", Integer),
        ("stored_dtype", Integer),
    )


def layer_part(spec: KVSpec) -> LayerPart:
    """Return the places of what one layer of a block holds."""
    tokens = spec.num_kv_heads * spec.block_size
    itemsize = stored_dtype(spec).itemsize
    scales = tokens * torch.float32.itemsize if spec.dtype == "int8" else 0
    # Integers lie in fours.
    head_size = -(-spec.head_size // 4) * 4 if spec.dtype == "int8" else spec.head_size
    sizes = (tokens * head_size * itemsize, tokens * spec.value_head_size * itemsize, scales, scales)
    return LayerPart(0, *accumulate(sizes))


def bytes_per_block(spec: KVSpec) -> int:
    """Return the bytes one block takes over all layers, scales included."""
    return spec.num_layers * layer_part(spec).end


def allocate_kv(spec: KVSpec, num_blocks: int) -> CpuKVPool:
    """Allocate a pool; its memory is left untouched, so that pages nobody uses are never backed.

    Raises:
        OutOfMemory: the allocator refuses.
        UnsupportedFeature: a dtype, block size or head size that the kernels do not know.
    """
    _check(spec)
    size = num_blocks * bytes_per_block(spec)
    try:
        memory = torch.frombuffer(map_large_pages(size + SLACK_BYTES), dtype=torch.uint8)
    except (OSError, OverflowError) as error:
        raise OutOfMemory(
            f"The system refuses a KV cache of {num_blocks} blocks of {bytes_per_block(spec)} bytes ({error}). "
            "Lower the number of blocks or the context."
        ) from error
    return CpuKVPool(spec, memory[:size].view(num_blocks, bytes_per_block(spec)))


def free_kv(pool: CpuKVPool) -> None:
    """Drop the memory."""
    pool.memory = torch.empty(0, 0, dtype=torch.uint8)


def copy_blocks(pool: CpuKVPool, pairs: Sequence[tuple[int, int]]) -> None:
    """Copy blocks one after the other: a block copied earlier in ``pairs`` is copied on with its new content."""
    for source, target in pairs:
        pool.memory[target].copy_(pool.memory[source])


def export_blocks(pool: CpuKVPool, block_ids: Sequence[int], out: UInt8[Tensor, "blocks bytes_per_block"]) -> None:
    """Copy blocks out."""
    for row, block_id in enumerate(block_ids):
        out[row].copy_(pool.memory[block_id])


def import_blocks(pool: CpuKVPool, block_ids: Sequence[int], data: UInt8[Tensor, "blocks bytes_per_block"]) -> None:
    """Copy what ``export_blocks`` wrote into blocks, maybe others."""
    for row, block_id in enumerate(block_ids):
        pool.memory[block_id].copy_(data[row])


def write_kv(
    library: Library,
    pool: CpuKVPool,
    layer: int,
    key: Float[Tensor, "tokens kv_heads head_size"],
    value: Float[Tensor, "tokens kv_heads value_head_size"],
    slot_mapping: Int64[Tensor, "tokens"],
    params: AttentionParams,
) -> None:
    """Store keys and values at their slots, rounded to the pool's dtype; slot -1 is skipped.

    Raises:
        UnsupportedFeature: ``k_scale`` or ``v_scale`` for a dtype that is no 8-bit float.
    """
    spec = pool.spec
    _check_scales(spec, params)
    library.run(
        WriteKVArguments(
            pointer(key),
            pointer(value),
            *pool.addresses(layer),
            pointer(slot_mapping),
            pointer(params.k_scale),
            pointer(params.v_scale),
            len(slot_mapping),
            spec.num_kv_heads,
            spec.head_size,
            spec.value_head_size,
            spec.block_size,
            *key.stride()[:2],
            *value.stride()[:2],
            *pool.strides,
            DTYPE_CODES[key.dtype],
            DTYPE_CODES[stored_dtype(spec)],
        )
    )


def stored_dtype(spec: KVSpec) -> torch.dtype:
    """Return torch's object for what the cache stores."""
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return dtype


def _check(spec: KVSpec) -> None:
    if spec.dtype not in KV_DTYPES:
        raise UnsupportedFeature(f"The CPU keeps no KV cache of {spec.dtype}; use one of {', '.join(KV_DTYPES)}.")
    if spec.block_size not in BLOCK_SIZES:
        raise UnsupportedFeature(
            f"The CPU keeps no KV blocks of {spec.block_size} tokens; use one of {', '.join(map(str, BLOCK_SIZES))}."
        )
    largest = max(spec.head_size, spec.value_head_size)
    if largest > LARGEST_HEAD:
        raise UnsupportedFeature(f"The CPU's KV cache takes heads of up to {LARGEST_HEAD} features, not {largest}.")


def _check_scales(spec: KVSpec, params: AttentionParams) -> None:
    has_scales = params.k_scale is not None or params.v_scale is not None
    if has_scales and not spec.dtype.startswith("float8"):
        raise UnsupportedFeature(
            f"A KV cache in {spec.dtype} takes no k_scale and no v_scale; they are for 8-bit floats."
        )
