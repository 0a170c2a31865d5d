"""Paged attention as one Pallas kernel, for decodes and prompt chunks alike.

Each program instance takes a tile of one request's queries through the blocks of its table, one block of all KV heads
at a time, with an online softmax (arXiv:1805.02867). Block ids are prefetched scalars: the pipeline fetches the next
block while the present one is computed. Blocks that a tile does not see are neither fetched nor read.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

# Finite, so that a query that sees nothing yields no NaN.
MASKED = float(jnp.finfo(jnp.float32).min)
# Queries a tile: with the heads that share a KV head they become rows of one matrix product.
TILE_QUERIES = 32


class Formula(NamedTuple):
    """The fixed part of ``AttentionParams``."""

    scale: float
    sliding_window: int | None = None
    softcap: float | None = None


class Sequences(NamedTuple):
    """Requests with equally many queries; query j of request r sits at position ``starts[r] + j``.

    ``lengths`` counts the keys a request has; 0 makes its output meaningless, but finite.
    """

    starts: Array  # int32 [requests]
    lengths: Array  # int32 [requests]
    block_tables: Array  # int32 [requests, blocks]


def paged_attention(
    query: Array,  # [requests, queries, heads, head_size]
    keys: Array,  # [blocks, kv_heads, block_size, head_size]
    values: Array,  # [blocks, kv_heads, block_size, value_head_size]
    sequences: Sequences,
    formula: Formula,
    interpret: bool,
) -> Array:
    """Return [requests, queries, heads, value_head_size] in the query's dtype; a query sees no later position."""
    num_requests, num_queries, heads, head_size = query.shape
    _, kv_heads, block_size, value_size = values.shape
    group = heads // kv_heads
    tile_queries = TILE_QUERIES if num_queries % TILE_QUERIES == 0 else num_queries
    rows = tile_queries * group
    # One matrix a KV head, whose rows are queries, and within a query the heads that share the KV head.
    grouped = query.reshape(num_requests, num_queries, kv_heads, group, head_size).transpose(0, 2, 1, 3, 4)
    grouped = grouped.reshape(num_requests, kv_heads, num_queries * group, head_size)

    def of_tile(request: Any, tile: Any, _block: Any, *_prefetched: Any) -> tuple[Any, ...]:
        return request, 0, tile, 0

    def of_block(request: Any, tile: Any, block: Any, starts: Any, lengths: Any, tables: Any) -> tuple[Any, ...]:
        span = _visible(starts[request], lengths[request], tile, tile_queries, block_size, formula.sliding_window)
        # A block outside the span names one inside: the pipeline does not fetch what it has already.
        column = jnp.clip(block, span.first, jnp.maximum(span.first, span.end - 1))
        return jnp.maximum(tables[request, jnp.minimum(column, tables.shape[1] - 1)], 0), 0, 0, 0

    longest = jnp.maximum(1, lax.div(jnp.max(sequences.lengths) + block_size - 1, block_size))
    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=3,
        grid=(num_requests, num_queries // tile_queries, longest),
        in_specs=[
            pl.BlockSpec((1, kv_heads, rows, head_size), of_tile),
            pl.BlockSpec((1, kv_heads, block_size, head_size), of_block),
            pl.BlockSpec((1, kv_heads, block_size, value_size), of_block),
        ],
        out_specs=pl.BlockSpec((1, kv_heads, rows, value_size), of_tile),
        scratch_shapes=[
            pltpu.VMEM((kv_heads, rows, 1), jnp.float32),
            pltpu.VMEM((kv_heads, rows, 1), jnp.float32),
            pltpu.VMEM((kv_heads, rows, value_size), jnp.float32),
        ],
    )
    attended = pl.pallas_call(
        partial(_kernel, formula=formula, group=group, tile_queries=tile_queries, block_size=block_size),
        grid_spec=grid,
        out_shape=jax.ShapeDtypeStruct((*grouped.shape[:3], value_size), query.dtype),
        interpret=interpret,
        name="paged_attention",
    )(sequences.starts, sequences.lengths, sequences.block_tables, grouped, keys, values)
    attended = attended.reshape(num_requests, kv_heads, num_queries, group, value_size).transpose(0, 2, 1, 3, 4)
    return attended.reshape(num_requests, num_queries, heads, value_size)


class _Span(NamedTuple):
    first: Any  # block columns
    end: Any


def _visible(start: Any, length: Any, tile: Any, tile_queries: int, block_size: int, window: int | None) -> _Span:
    """Return the columns of the block table of which some query of a tile sees a key."""
    first_position = start + tile * tile_queries
    end = lax.div(jnp.minimum(length, first_position + tile_queries) + block_size - 1, block_size)
    first = jnp.int32(0) if window is None else lax.div(jnp.maximum(0, first_position - window + 1), block_size)
    return _Span(first, end)


def _kernel(
    starts: Any,
    lengths: Any,
    _tables: Any,
    query: Any,
    keys: Any,
    values: Any,
    out: Any,
    peaks: Any,
    totals: Any,
    weighted: Any,
    *,
    formula: Formula,
    group: int,
    tile_queries: int,
    block_size: int,
) -> None:
    request, tile, block = (pl.program_id(axis) for axis in range(3))
    start, length = starts[request], lengths[request]
    span = _visible(start, length, tile, tile_queries, block_size, formula.sliding_window)
    exact = lax.Precision.HIGHEST if query.dtype == jnp.float32 else lax.Precision.DEFAULT

    @pl.when(block == 0)
    def _begin() -> None:
        peaks[...] = jnp.full_like(peaks, MASKED)
        totals[...] = jnp.zeros_like(totals)
        weighted[...] = jnp.zeros_like(weighted)

    @pl.when((block >= span.first) & (block < span.end))
    def _extend() -> None:
        rows = query.shape[2]
        scores = lax.dot_general(
            query[0].astype(jnp.float32),
            keys[0].astype(jnp.float32),
            (((2,), (2,)), ((0,), (0,))),
            precision=exact,
            preferred_element_type=jnp.float32,
        )
        scores = scores * formula.scale
        if formula.softcap is not None:
            scores = formula.softcap * jnp.tanh(scores / formula.softcap)
        key_position = block * block_size + lax.broadcasted_iota(jnp.int32, (1, rows, block_size), 2)
        query_row = lax.broadcasted_iota(jnp.int32, (1, rows, block_size), 1)
        query_position = start + tile * tile_queries + lax.div(query_row, group)
        is_visible = (key_position <= query_position) & (key_position < length)
        if formula.sliding_window is not None:
            is_visible &= key_position > query_position - formula.sliding_window
        scores = jnp.where(is_visible, scores, MASKED)
        # Slots that no query of the tile sees may hold anything, and 0 * NaN would be NaN.
        slot_position = block * block_size + lax.broadcasted_iota(jnp.int32, (1, block_size, 1), 1)
        is_used = slot_position < jnp.minimum(length, start + (tile + 1) * tile_queries)
        if formula.sliding_window is not None:
            is_used &= slot_position > start + tile * tile_queries - formula.sliding_window
        used = jnp.where(is_used, values[0].astype(jnp.float32), 0.0)
        peak = jnp.maximum(peaks[...], jnp.max(scores, axis=-1, keepdims=True))
        weights = jnp.where(is_visible, jnp.exp(scores - peak), 0.0)
        decay = jnp.exp(peaks[...] - peak)
        totals[...] = totals[...] * decay + jnp.sum(weights, axis=-1, keepdims=True)
        weighted[...] = weighted[...] * decay + lax.dot_general(
            weights,
            used,
            (((2,), (1,)), ((0,), (0,))),
            precision=exact,
            preferred_element_type=jnp.float32,
        )
        peaks[...] = peak

    @pl.when(block == pl.num_programs(2) - 1)
    def _end() -> None:
        total = totals[...]
        out[0] = (weighted[...] / jnp.where(total > 0, total, 1.0)).astype(out.dtype)
