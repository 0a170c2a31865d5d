"""Paged attention as one matrix product over a whole padded block table: no shape depends on a length."""

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from pageport.backend.kv import AttentionParams
from pageport.backend.reference.kv import ReferenceKVPool

# Finite, so that a query that sees nothing yields no NaN.
MASKED = torch.finfo(torch.float32).min


def static_attention(
    pool: ReferenceKVPool,
    layer: int,
    query: Float[Tensor, "tokens heads head_size"],
    params: AttentionParams,
    block_table: Int32[Tensor, "requests blocks"],
    positions: Int64[Tensor, "tokens"],
    seq_lens: Int32[Tensor, "requests"],
) -> Float[Tensor, "tokens heads value_head_size"]:
    """Attend in float32 for requests with equally many tokens, whose positions ascend.

    A query sees keys up to its own position (within its window); what no query of a request sees may hold anything,
    and block -1 is the null block.
    """
    num_requests, heads = block_table.shape[0], query.shape[1]
    keys = _gathered(pool, pool.key, pool.key_scale, layer, block_table, params.k_scale)
    values = _gathered(pool, pool.value, pool.value_scale, layer, block_table, params.v_scale)
    kv_heads, num_keys = keys.shape[1:3]
    query_positions = positions.view(num_requests, -1)
    key_positions = torch.arange(num_keys, device=query.device)
    is_visible = key_positions <= query_positions.unsqueeze(-1)  # [requests, queries, keys]
    # Behind the sequence, and before the first query's window: nobody's. 0 * NaN would be NaN.
    is_used = key_positions < seq_lens.unsqueeze(-1)
    if params.sliding_window is not None:
        is_visible = is_visible & (key_positions > query_positions.unsqueeze(-1) - params.sliding_window)
        is_used = is_used & (key_positions > query_positions[:, :1] - params.sliding_window)
    values = torch.where(is_used[:, None, :, None], values, 0.0)

    # Query heads that share a KV head stand beside each other.
    rows = query.float().view(num_requests, -1, kv_heads, heads // kv_heads, query.shape[-1]).permute(0, 2, 3, 1, 4)
    scores = torch.matmul(rows, keys.unsqueeze(2).transpose(-1, -2)) * params.scale
    if params.softcap is not None:
        scores = torch.tanh(scores / params.softcap) * params.softcap
    if params.alibi is not None:
        distance = (key_positions - query_positions.unsqueeze(-1)).float()
        slopes = params.alibi.float().view(1, kv_heads, heads // kv_heads, 1, 1)
        scores = scores + slopes * distance[:, None, None]
    scores = torch.where(is_visible[:, None, None], scores, MASKED)
    if params.sinks is not None:
        sinks = params.sinks.float().view(1, kv_heads, heads // kv_heads, 1, 1).expand(*scores.shape[:-1], 1)
        weights = torch.softmax(torch.cat((sinks, scores), dim=-1), dim=-1)[..., 1:]
    else:
        weights = torch.softmax(scores, dim=-1)
    attended = torch.matmul(weights, values.unsqueeze(2)).permute(0, 3, 1, 2, 4)
    return attended.reshape(query.shape[0], heads, values.shape[-1]).to(query.dtype)


def _gathered(
    pool: ReferenceKVPool,
    stored: Tensor,
    stored_scale: Tensor | None,
    layer: int,
    block_table: Tensor,
    scale: Tensor | None,
) -> Float[Tensor, "requests kv_heads keys size"]:
    """Return the keys or values of every block in the table, in float32."""
    # The pool's last block is the null block.
    blocks = torch.where(block_table < 0, stored.shape[1] - 1, block_table.long()).flatten()
    shape = (*block_table.shape, stored.shape[2], pool.spec.block_size, -1)
    gathered = stored[layer].index_select(0, blocks).float().view(shape)
    if stored_scale is not None:
        gathered = gathered * stored_scale[layer].index_select(0, blocks).view(*shape[:-1], 1)
    if scale is not None:
        gathered = gathered * scale
    return gathered.transpose(1, 2).flatten(2, 3)
