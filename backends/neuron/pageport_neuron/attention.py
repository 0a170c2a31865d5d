"""Attention of decodes over a paged cache: in plain torch, and in an NKI kernel where NKI is installed."""

from collections.abc import Callable
from importlib import import_module

import torch
from torch import Tensor

from pageport.backend.kv import AttentionParams, KVSpec

# (query [requests, heads, size], keys and values [blocks + 1, kv_heads, block_size, size], block_table int32
# [requests, blocks] with -1 for the null block, which is the last, seq_lens int32 [requests], scale)
# → [requests, heads, size]
DecodeAttention = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, float], Tensor]

# Finite, so that a request without a key yields no NaN; float32 holds the sum of it and any score.
MASKED = -1e30
# Keys that the kernel takes at a time: partitions of the on-chip memory.
TILE = 128


def serves(spec: KVSpec, params: AttentionParams) -> bool:
    """Tell whether ``DecodeAttention`` computes this; the static decoder's own attention has every variant."""
    extras = (params.sliding_window, params.softcap, params.sinks, params.alibi, params.k_scale, params.v_scale)
    is_plain = all(extra is None for extra in extras) and spec.dtype in ("float32", "bfloat16")
    return is_plain and max(spec.head_size, spec.value_head_size) <= TILE


def decode_attention(
    query: Tensor, keys: Tensor, values: Tensor, block_table: Tensor, seq_lens: Tensor, scale: float
) -> Tensor:
    """Attend in float32; each request has one query, and sees its first ``seq_lens`` keys."""
    rows = key_rows(block_table, keys.shape)
    is_seen = _is_seen(rows.shape[-1], seq_lens)
    requests, kv_heads = rows.shape[:2]
    gathered_keys = _gather(keys, rows).float()
    # What nobody sees may hold NaN, which a weight of 0 would let through.
    gathered_values = torch.where(is_seen[:, None, :, None], _gather(values, rows).float(), 0.0)
    grouped = query.float().view(requests, kv_heads, -1, query.shape[-1])
    scores = torch.matmul(grouped, gathered_keys.transpose(-1, -2)) * scale
    weights = torch.softmax(torch.where(is_seen[:, None, None, :], scores, MASKED), dim=-1)
    return torch.matmul(weights, gathered_values).view(requests, -1, values.shape[-1]).to(query.dtype)


def nki_decode_attention() -> DecodeAttention | None:
    """Return what calls the NKI kernel, or None where NKI or its bridge to torch is missing."""
    try:
        bridge = import_module("torch_neuronx").nki_op
        kernel = import_module("pageport_neuron.kernels.paged_decode").paged_decode
    except (ImportError, AttributeError):
        return None

    @bridge("pageport_neuron::paged_decode", mutates_args={})  # type: ignore[untyped-decorator]
    def paged_decode(query: Tensor, keys: Tensor, values: Tensor, rows: Tensor, mask: Tensor) -> Tensor:
        attended: Tensor = kernel(query, keys, values, rows, mask)
        return attended

    def attend(
        query: Tensor, keys: Tensor, values: Tensor, block_table: Tensor, seq_lens: Tensor, scale: float
    ) -> Tensor:
        requests, heads, size = query.shape
        rows = _whole_tiles(key_rows(block_table, keys.shape))
        kv_heads, num_keys = rows.shape[1:]
        is_seen = _is_seen(num_keys, seq_lens)
        # What nobody sees may hold NaN, which a weight of 0 would let through: the first key is read in its place.
        rows = torch.where(is_seen[:, None], rows, rows[..., :1])
        added = torch.where(is_seen, 0.0, MASKED)
        # One copy for each query head that shares a KV head: the kernel then adds tiles of equal shape.
        mask = added[:, None].expand(requests, heads // kv_heads, num_keys).contiguous()
        grouped = (query.float() * scale).to(keys.dtype).view(requests, kv_heads, heads // kv_heads, size)
        attended: Tensor = paged_decode(
            grouped.transpose(-1, -2).contiguous(),
            keys.reshape(-1, keys.shape[-1]),
            values.reshape(-1, values.shape[-1]),
            rows.unsqueeze(-1),
            mask,
        )
        return attended.view(requests, heads, values.shape[-1]).to(query.dtype)

    return attend


def key_rows(block_table: Tensor, shape: torch.Size) -> Tensor:
    """Return where each key lies: int32 [requests, kv_heads, keys], rows of the blocks seen as one matrix."""
    num_blocks, kv_heads, block_size, _ = shape
    blocks = torch.where(block_table < 0, num_blocks - 1, block_table)
    heads = torch.arange(kv_heads, dtype=torch.int32, device=block_table.device)
    offsets = torch.arange(block_size, dtype=torch.int32, device=block_table.device)
    first = (blocks[:, None, :] * kv_heads + heads[:, None]) * block_size
    return (first.unsqueeze(-1) + offsets).flatten(2)


def _whole_tiles(rows: Tensor) -> Tensor:
    missing = -rows.shape[-1] % TILE
    return torch.nn.functional.pad(rows, (0, missing)) if missing else rows


def _is_seen(num_keys: int, seq_lens: Tensor) -> Tensor:
    return torch.arange(num_keys, dtype=torch.int32, device=seq_lens.device) < seq_lens.unsqueeze(-1)


def _gather(blocks: Tensor, rows: Tensor) -> Tensor:
    size = blocks.shape[-1]
    return blocks.reshape(-1, size).index_select(0, rows.flatten()).view(*rows.shape, size)
