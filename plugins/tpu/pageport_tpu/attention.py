"""Paged attention as one Pallas kernel, for decodes and prompt chunks alike.

Each program instance takes a tile of one request's queries through the blocks of its table, one block at a time, with
an online softmax (arXiv:1805.02867). Block ids are prefetched scalars: the pipeline fetches the next
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
MASKED = -3e38
# Rows of queries, scores and sums that a tile holds for all heads together, within the memory of a core.
TILE_ROWS = 2048
# More would compute much above the diagonal.
MOST_TILE_QUERIES = 128


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
    keys: Array,  # [blocks, block_size, kv_heads * head_size]
    values: Array,  # [blocks, block_size, kv_heads * value_head_size]
    sequences: Sequences,
    formula: Formula,
    interpret: bool,
) -> Array:
    """Return [requests, queries, heads, value_head_size] in the query's dtype; a query sees no later position."""
    num_requests, num_queries, heads, head_size = query.shape
    block_size = keys.shape[1]
    kv_heads = keys.shape[2] // head_size
    value_size = values.shape[2] // kv_heads
    group = heads // kv_heads
    tile_queries = _tile_queries(num_queries, heads)
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
        return jnp.maximum(tables[request, jnp.minimum(column, tables.shape[1] - 1)], 0), 0, 0

    longest = jnp.maximum(1, lax.div(jnp.max(sequences.lengths) + block_size - 1, block_size))
    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=3,
        grid=(num_requests, num_queries // tile_queries, longest),
        in_specs=[
            pl.BlockSpec((1, kv_heads, rows, head_size), of_tile),
            pl.BlockSpec((1, *keys.shape[1:]), of_block),
            pl.BlockSpec((1, *values.shape[1:]), of_block),
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
        # Chips with two cores share requests and tiles out.
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        interpret=interpret,
        name="paged_attention",
    )(sequences.starts, sequences.lengths, sequences.block_tables, grouped, keys, values)
    attended = attended.reshape(num_requests, kv_heads, num_queries, group, value_size).transpose(0, 2, 1, 3, 4)
    result: Array = attended.reshape(num_requests, num_queries, heads, value_size)
    return result


def _tile_queries(num_queries: int, heads: int) -> int:
    """Return how many queries a tile has: a power of two, or all where that does not divide them."""
    size = min(MOST_TILE_QUERIES, 1 << (TILE_ROWS // heads).bit_length() - 1)
    return size if num_queries % size == 0 else num_queries


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
        shape = query.shape[2], block_size
        key_position = block * block_size + lax.broadcasted_iota(jnp.int32, shape, 1)
        query_row = lax.broadcasted_iota(jnp.int32, shape, 0)
        query_position = start + tile * tile_queries + lax.div(query_row, group)
        is_visible = (key_position <= query_position) & (key_position < length)
        # Slots that no query of the tile sees may hold anything, and 0 * NaN would be NaN.
        slot = block * block_size + lax.broadcasted_iota(jnp.int32, (block_size, 1), 0)
        is_used = slot < jnp.minimum(length, start + (tile + 1) * tile_queries)
        if formula.sliding_window is not None:
            is_visible &= key_position > query_position - formula.sliding_window
            is_used &= slot > start + tile * tile_queries - formula.sliding_window
        for head in range(query.shape[1]):
            scores = formula.scale * _product(query[0, head], _columns(keys, head, query.shape[3]), 1, exact)
            if formula.softcap is not None:
                scores = formula.softcap * jnp.tanh(scores / formula.softcap)
            scores = jnp.where(is_visible, scores, MASKED)
            used = jnp.where(is_used, _columns(values, head, out.shape[3]), 0.0)
            peak = jnp.maximum(peaks[head], jnp.max(scores, axis=-1, keepdims=True))
            weights = jnp.where(is_visible, jnp.exp(scores - peak), 0.0)
            decay = jnp.exp(peaks[head] - peak)
            totals[head] = totals[head] * decay + jnp.sum(weights, axis=-1, keepdims=True)
            weighted[head] = weighted[head] * decay + _product(weights, used, 0, exact)
            peaks[head] = peak

    @pl.when(block == pl.num_programs(2) - 1)
    def _end() -> None:
        total = totals[...]
        out[0] = (weighted[...] / jnp.where(total > 0, total, 1.0)).astype(out.dtype)


def _columns(block: Any, head: int, size: int) -> Any:
    """Return one KV head's part of a block's keys or values, in float32."""
    return block[0, :, head * size : (head + 1) * size].astype(jnp.float32)


def _product(left: Array, right: Array, axis: int, precision: lax.Precision) -> Array:
    """Sum products along the last axis of ``left`` and ``axis`` of ``right``."""
    dimensions = (((1,), (axis,)), ((), ()))
    left = left.astype(jnp.float32)
    return lax.dot_general(left, right, dimensions, precision=precision, preferred_element_type=jnp.float32)
