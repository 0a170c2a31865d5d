"""Kernels of decode attention: one query a request, its keys divided among programs, and what merges these."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# pyright: reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl

from pageport_triton.attention_tile_kernel import LOG2_E, attend_tile, load_matrix, normalised
from pageport_triton.kv_rounding_kernel import rounded_to


@triton.jit
def first_tile_key(length, window, KEYS: tl.constexpr):
    """Return where the first tile that the query sees begins."""
    first = length * 0
    if window is not None:
        first = tl.maximum(length - window, 0) // KEYS * KEYS
    return first


@triton.jit
def keys_per_split(num_keys, num_splits, KEYS: tl.constexpr, LEAST_TILES: tl.constexpr):
    """Return how many keys each program takes, in whole tiles: short requests use fewer programs."""
    return tl.maximum(tl.cdiv(tl.cdiv(num_keys, KEYS), num_splits), LEAST_TILES) * KEYS


@triton.jit(do_not_specialize=["table_stride"])
def decode_attention_kernel(
    query_pointer,
    out_pointer,
    partial_pointer,  # float32 [requests, heads, splits, VALUE_SIZE]; None with one split, as the next
    log_total_pointer,  # float32 [requests, heads, splits], base 2
    key_pointer,
    value_pointer,
    key_scale_pointer,
    value_scale_pointer,
    table_pointer,
    lengths_pointer,
    starts_pointer,
    sinks_pointer,
    slopes_pointer,
    k_scale_pointer,
    v_scale_pointer,
    query_token_stride,
    query_head_stride,
    out_token_stride,
    out_head_stride,
    table_stride,
    block_stride,
    scale_block_stride,
    scale,
    softcap,
    window,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    LEAST_TILES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    HEAD_CHUNK: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    VALUE_TILE: tl.constexpr,
    STORED: tl.constexpr,
    HAS_FLOAT8: tl.constexpr,
    PRECISION: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
):
    """Attend for the heads of one group over one split; rows are heads, padded to what a matrix product takes."""
    request = tl.program_id(0)
    split = tl.program_id(2)
    num_splits = tl.num_programs(2)
    kv_head = tl.program_id(1) % KV_HEADS
    members = tl.program_id(1) // KV_HEADS * ROWS + tl.arange(0, ROWS)
    token = tl.load(starts_pointer + request)
    if token == tl.load(starts_pointer + request + 1):
        return
    length = tl.load(lengths_pointer + request)
    first = first_tile_key(length, window, KEYS)
    step = keys_per_split(length - first, num_splits, KEYS, LEAST_TILES)
    start = first + split * step
    if (split > 0) & (start >= length):
        return
    end = tl.minimum(start + step, length)
    first_key = first
    if window is not None:
        first_key = tl.maximum(length - window, 0)

    heads = kv_head * GROUP + members
    is_row = members < GROUP
    query_rows = token.to(tl.int64) * query_token_stride + heads * query_head_stride
    factor: tl.constexpr = tl.float32 if IS_INTERPRETED else query_pointer.dtype.element_ty
    query = None
    if HEAD_CHUNK == HEAD_TILE:
        query = load_matrix(query_pointer, query_rows, is_row, HEAD_SIZE, HEAD_TILE, True).to(factor)
    slopes = None
    if slopes_pointer is not None:
        slopes = tl.load(slopes_pointer + heads, mask=is_row, other=0)
    if k_scale_pointer is not None:
        scale *= tl.load(k_scale_pointer)
    key_pointer += kv_head * (BLOCK_SIZE * HEAD_SIZE)
    value_pointer += kv_head * (BLOCK_SIZE * VALUE_SIZE)
    if STORED == "int8":
        key_scale_pointer += kv_head * BLOCK_SIZE
        value_scale_pointer += kv_head * BLOCK_SIZE
    table = table_pointer + request.to(tl.int64) * table_stride
    positions = tl.full([ROWS], 0, tl.int32) + (length - 1)

    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    if partial_pointer is None and sinks_pointer is not None:
        peak = tl.load(sinks_pointer + heads, mask=is_row, other=0).to(tl.float32) * LOG2_E
        total += 1.0
    weighted = tl.zeros([ROWS, VALUE_TILE], tl.float32)
    for tile in range(start, end, KEYS):
        peak, total, weighted = attend_tile(
            query,
            query_pointer,
            query_rows,
            is_row,
            positions,
            slopes,
            tile + tl.arange(0, KEYS),
            first_key,
            end,
            peak,
            total,
            weighted,
            table,
            key_pointer,
            value_pointer,
            key_scale_pointer,
            value_scale_pointer,
            block_stride,
            scale_block_stride,
            scale,
            softcap,
            window,
            HAS_ROW_MASK=False,
            CAUSAL=False,
            IS_MASKED=True,
            BLOCK_SIZE=BLOCK_SIZE,
            HEAD_SIZE=HEAD_SIZE,
            HEAD_TILE=HEAD_TILE,
            HEAD_CHUNK=HEAD_CHUNK,
            VALUE_SIZE=VALUE_SIZE,
            VALUE_TILE=VALUE_TILE,
            STORED=STORED,
            HAS_FLOAT8=HAS_FLOAT8,
            FACTOR=factor,
            PRECISION=PRECISION,
        )
    result = normalised(total, weighted, v_scale_pointer)
    features = tl.arange(0, VALUE_TILE)
    is_stored = is_row[:, None] & (features < VALUE_SIZE)[None, :]
    if partial_pointer is None:
        rows = token.to(tl.int64) * out_token_stride + heads * out_head_stride
        result = rounded_to(result, out_pointer.dtype.element_ty, IS_INTERPRETED)
        tl.store(out_pointer + rows[:, None] + features[None, :], result, mask=is_stored)
    else:
        rows = (request.to(tl.int64) * (KV_HEADS * GROUP) + heads) * num_splits + split
        tl.store(partial_pointer + rows[:, None] * VALUE_SIZE + features[None, :], result, mask=is_stored)
        tl.store(log_total_pointer + rows, peak + tl.log2(total), mask=is_row)


@triton.jit(do_not_specialize=["num_splits"])
def merge_splits_kernel(
    out_pointer,
    partial_pointer,
    log_total_pointer,
    lengths_pointer,
    starts_pointer,
    sinks_pointer,
    out_token_stride,
    out_head_stride,
    window,
    num_splits,
    HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    MOST_SPLITS: tl.constexpr,
    LEAST_TILES: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    VALUE_TILE: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
):
    """Merge one head's splits, each weighted by its share of the total."""
    request = tl.program_id(0)
    head = tl.program_id(1)
    token = tl.load(starts_pointer + request)
    if token == tl.load(starts_pointer + request + 1):
        return
    length = tl.load(lengths_pointer + request)
    first = first_tile_key(length, window, KEYS)
    step = keys_per_split(length - first, num_splits, KEYS, LEAST_TILES)
    splits = tl.arange(0, MOST_SPLITS)
    features = tl.arange(0, VALUE_TILE)
    # Programs without keys have written nothing.
    is_written = (splits < num_splits) & (first + splits * step < length)
    rows = (request.to(tl.int64) * HEADS + head) * num_splits + splits
    log_totals = tl.load(log_total_pointer + rows, mask=is_written, other=float("-inf"))
    peak = tl.max(log_totals, 0)
    if sinks_pointer is not None:
        sink = tl.load(sinks_pointer + head).to(tl.float32) * LOG2_E
        peak = tl.maximum(peak, sink)
    subtracted = tl.where(peak == float("-inf"), 0.0, peak)
    weights = tl.exp2(log_totals - subtracted)
    total = tl.sum(weights, 0)
    if sinks_pointer is not None:
        total += tl.exp2(sink - subtracted)
    partial = load_matrix(partial_pointer, rows * VALUE_SIZE, is_written, VALUE_SIZE, VALUE_TILE, True)
    merged = tl.sum(weights[:, None] * partial, 0)
    result = tl.where(total == 0, 0.0, merged / total)
    result = rounded_to(result, out_pointer.dtype.element_ty, IS_INTERPRETED)
    place = token.to(tl.int64) * out_token_stride + head * out_head_stride
    tl.store(out_pointer + place + features, result, mask=features < VALUE_SIZE)
