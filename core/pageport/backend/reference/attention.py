"""Paged attention in plain torch: gather a tile of blocks, multiply, mask, normalise, multiply."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from pageport.backend.batch import AttentionBatch
from pageport.backend.kv import AttentionParams
from pageport.backend.reference.attention_plan import AttentionPlan, Chunk, Group, Piece, Tile, plan
from pageport.backend.reference.kv import ReferenceKVPool

__all__ = ["attention", "plan"]

# Finite, so that a query that sees nothing of one tile yields no NaN; its weight vanishes once it sees a key.
MASKED = torch.finfo(torch.float32).min


class Partial(NamedTuple):
    """Attention over the keys seen so far, not yet divided by ``total`` (arXiv:1805.02867)."""

    peak: Tensor  # the largest score [requests * kv_heads, queries * group_size, 1]
    total: Tensor  # sum of exp(score - peak), same shape
    weighted: Tensor  # sum of exp(score - peak) * value [requests * kv_heads, queries * group_size, value_head_size]


def attention(
    pool: ReferenceKVPool,
    layer: int,
    query: Float[Tensor, "tokens heads head_size"],
    params: AttentionParams,
    batch: AttentionBatch,
    out: Float[Tensor, "tokens heads value_head_size"],
    rows: range,
) -> None:
    """Attend over the paged cache in float32 for the requests ``rows``; the output of padding among them is zero.

    ALiBi adds ``slope * (key position - query position)`` (arXiv:2108.12409). A sink is one more score a head, whose
    value is zero (arXiv:2309.17453).
    """
    steps = batch.plan if isinstance(batch.plan, AttentionPlan) else plan(pool.spec, batch)
    share = steps.share(rows, params.sliding_window, params.causal)
    if share.padding is not None:
        out.index_fill_(0, share.padding, 0)
    for group in share.groups:
        partials: list[Partial | None] = [None] * len(group.chunks)
        for tile in group.tiles:
            keys = _gather("key", pool.key, pool.key_scale, layer, steps, tile, params.k_scale)
            values = _gather("value", pool.value, pool.value_scale, layer, steps, tile, params.v_scale)
            if tile.unused is not None:
                values.view(-1, values.shape[-1]).index_fill_(0, tile.unused, 0)
            for piece in tile.pieces:
                chunk = group.chunks[piece.chunk]
                scores = _scores(group, chunk, tile, piece, query, keys, params)
                seen = values[:, piece.first : piece.last]
                if piece.is_whole and params.sinks is None:
                    _store(group, chunk, torch.bmm(scores.softmax(-1), seen), out)
                    continue
                before = partials[piece.chunk] or _sink(group, chunk, params, seen)
                partials[piece.chunk] = _extend(before, scores, seen)
        for chunk, partial in zip(group.chunks, partials, strict=True):
            if partial is not None:
                _store(group, chunk, partial.weighted / partial.total, out)


def _gather(
    name: str,
    stored: Tensor,
    stored_scale: Tensor | None,
    layer: int,
    steps: AttentionPlan,
    tile: Tile,
    scale: Tensor | None,
) -> Tensor:
    """Return a tile's keys or values, scaled [requests * kv_heads, keys, size]."""
    gathered = steps.gather(name, stored[layer], tile)
    if stored_scale is not None:
        gathered.mul_(steps.gather(f"{name} scale", stored_scale[layer].unsqueeze(-1), tile))
    return gathered if scale is None else gathered.mul_(scale)


def _scores(
    group: Group, chunk: Chunk, tile: Tile, piece: Piece, query: Tensor, keys: Tensor, params: AttentionParams
) -> Tensor:
    """Return masked scores [requests * kv_heads, queries * group_size, keys]."""
    kv_heads = len(keys) // group.requests
    # Query heads that share a KV head become rows of one matrix: keys are not repeated.
    group_size = query.shape[1] // kv_heads
    rows = query[chunk.tokens].float()
    rows = rows.view(group.requests, chunk.queries, kv_heads, group_size, -1).transpose(1, 2)
    rows = rows.reshape(group.requests * kv_heads, chunk.queries * group_size, -1)
    keys = keys[:, piece.first : piece.last]
    # With beta 0 the first argument is not read.
    scores = torch.baddbmm(keys.new_empty(()), rows, keys.transpose(1, 2), beta=0, alpha=params.scale)
    if params.softcap is not None:
        scores.div_(params.softcap).tanh_().mul_(params.softcap)
    shaped = scores.view(group.requests, kv_heads, chunk.queries, group_size, -1)
    if params.alibi is not None:
        distance = tile.positions[:, None, piece.first : piece.last] - chunk.positions[:, :, None]
        slopes = params.alibi.view(kv_heads, 1, group_size, 1)
        shaped.add_(slopes * distance[:, None, :, None])
    if piece.hidden is not None:
        shaped[..., piece.masked_from :].masked_fill_(piece.hidden, MASKED)
    return scores


def _sink(group: Group, chunk: Chunk, params: AttentionParams, values: Tensor) -> Partial | None:
    """Return the state before any key: what the sinks weigh."""
    if params.sinks is None:
        return None
    kv_heads = len(values) // group.requests
    sinks = params.sinks.float().view(1, kv_heads, 1, -1)
    peak = sinks.expand(group.requests, -1, chunk.queries, -1).reshape(len(values), -1, 1)
    return Partial(peak, torch.ones_like(peak), torch.zeros_like(peak))


def _extend(before: Partial | None, scores: Tensor, values: Tensor) -> Partial:
    """Add more keys."""
    peak = scores.amax(-1, keepdim=True)
    if before is not None:
        peak = torch.maximum(peak, before.peak)
    weights = (scores - peak).exp_()
    total, weighted = weights.sum(-1, keepdim=True), torch.bmm(weights, values)
    if before is not None:
        decay = (before.peak - peak).exp_()
        total, weighted = total + before.total * decay, weighted + before.weighted * decay
    return Partial(peak, total, weighted)


def _store(group: Group, chunk: Chunk, result: Tensor, out: Tensor) -> None:
    """Write [requests * kv_heads, queries * group_size, value_head_size] to the chunk's tokens."""
    heads, value_head_size = out.shape[1:]
    kv_heads = len(result) // group.requests
    result = result.view(group.requests, kv_heads, chunk.queries, heads // kv_heads, value_head_size)
    out[chunk.tokens] = result.transpose(1, 2).reshape(-1, heads, value_head_size).to(out.dtype)
