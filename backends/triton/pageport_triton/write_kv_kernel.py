"""Kernels that store keys and values, rounded to what the cache holds; rows are tokens times heads."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# pyright: reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl

from pageport_triton.kv_rounding_kernel import int8_scale, rounded_to, to_float8, to_int8


@triton.jit
def cached_rows(rows, is_row, slots_pointer, block_stride, HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """Return block, row of a head within its part of a block, and whether the row is stored at all."""
    slots = tl.load(slots_pointer + rows // HEADS, mask=is_row, other=-1)
    return slots // BLOCK_SIZE, (rows % HEADS) * BLOCK_SIZE + slots % BLOCK_SIZE, slots >= 0


@triton.jit
def largest_magnitudes(values):
    """Return the largest magnitude of each row [rows, size]."""
    return tl.max(tl.abs(values), 1)


@triton.jit
def any_nan(values):
    """Return for each row [rows, size] whether it has NaN."""
    return tl.max((values != values).to(tl.int32), 1) > 0


@triton.jit
def store_numbers(
    pointers, values, mask, scale, fixed_scale_pointer, STORED: tl.constexpr, IS_INTERPRETED: tl.constexpr
):
    """Store float32 ``values``: over ``scale`` [rows] as int8, over a fixed scale as 8-bit floats, or as they are."""
    if STORED == "int8":
        stored = to_int8(values, scale)
    elif STORED == "float8_e4m3fn" or STORED == "float8_e5m2":
        if fixed_scale_pointer is not None:
            values = tl.div_rn(values, tl.load(fixed_scale_pointer))
        stored = to_float8(values, STORED)
    else:
        stored = rounded_to(values, pointers.dtype.element_ty, IS_INTERPRETED)
    tl.store(pointers, stored, mask=mask)


@triton.jit
def write_rows(
    given_pointer,  # [tokens, heads, SIZE] with strides
    stored_pointer,
    scale_pointer,  # of int8 only
    fixed_scale_pointer,  # of 8-bit floats only, or None
    slots_pointer,
    token_stride,
    head_stride,
    block_stride,
    scale_block_stride,
    rows,
    num_rows,
    HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
    STORED: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
):
    """Store rows as they are given."""
    blocks, places, is_stored = cached_rows(rows, rows < num_rows, slots_pointer, block_stride, HEADS, BLOCK_SIZE)
    features = tl.arange(0, TILE)
    mask = is_stored[:, None] & (features < SIZE)[None, :]
    given = (rows // HEADS).to(tl.int64) * token_stride + (rows % HEADS) * head_stride
    values = tl.load(given_pointer + given[:, None] + features[None, :], mask=mask, other=0).to(tl.float32)
    scale = None
    if STORED == "int8":
        scale = int8_scale(largest_magnitudes(values), any_nan(values))
        tl.store(scale_pointer + blocks * scale_block_stride + places, scale, mask=is_stored)
    stored = stored_pointer + (blocks * block_stride + places * SIZE)[:, None] + features[None, :]
    store_numbers(stored, values, mask, scale, fixed_scale_pointer, STORED, IS_INTERPRETED)


@triton.jit(do_not_specialize=["num_rows"])
def write_kv_kernel(
    key_pointer,
    value_pointer,
    stored_key_pointer,
    stored_value_pointer,
    key_scale_pointer,
    value_scale_pointer,
    k_scale_pointer,
    v_scale_pointer,
    slots_pointer,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    block_stride,
    scale_block_stride,
    num_rows,
    KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    VALUE_TILE: tl.constexpr,
    STORED: tl.constexpr,
    ROWS: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
):
    """Store keys and values at their slots."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    write_rows(
        key_pointer,
        stored_key_pointer,
        key_scale_pointer,
        k_scale_pointer,
        slots_pointer,
        key_token_stride,
        key_head_stride,
        block_stride,
        scale_block_stride,
        rows,
        num_rows,
        KV_HEADS,
        BLOCK_SIZE,
        HEAD_SIZE,
        HEAD_TILE,
        STORED,
        IS_INTERPRETED,
    )
    write_rows(
        value_pointer,
        stored_value_pointer,
        value_scale_pointer,
        v_scale_pointer,
        slots_pointer,
        value_token_stride,
        value_head_stride,
        block_stride,
        scale_block_stride,
        rows,
        num_rows,
        KV_HEADS,
        BLOCK_SIZE,
        VALUE_SIZE,
        VALUE_TILE,
        STORED,
        IS_INTERPRETED,
    )


@triton.jit
def turned(
    pointers,  # [rows, HALF_TILE]: the first partner of each pair
    partner,  # how far the second one is from it
    cosines,
    sines,
    mask,
    IS_INTERPRETED: tl.constexpr,
):
    """Return both partners rotated, in the dtype they were given in (arXiv:2104.09864)."""
    dtype: tl.constexpr = pointers.dtype.element_ty
    first = tl.load(pointers, mask=mask, other=0).to(tl.float32)
    second = tl.load(pointers + partner, mask=mask, other=0).to(tl.float32)
    turned_first = rounded_to(first * cosines - second * sines, dtype, IS_INTERPRETED)
    turned_second = rounded_to(second * cosines + first * sines, dtype, IS_INTERPRETED)
    return turned_first, turned_second


@triton.jit
def angles(
    rows, is_row, positions_pointer, cos_sin_pointer, HEADS: tl.constexpr, HALF: tl.constexpr, HALF_TILE: tl.constexpr
):
    """Return cosines and sines [rows, HALF_TILE] of the rows' tokens, and where there are pairs."""
    pairs = tl.arange(0, HALF_TILE)
    mask = is_row[:, None] & (pairs < HALF)[None, :]
    positions = tl.load(positions_pointer + rows // HEADS, mask=is_row, other=0)
    pointers = cos_sin_pointer + (positions * (2 * HALF))[:, None] + pairs[None, :]
    return tl.load(pointers, mask=mask, other=0), tl.load(pointers + HALF, mask=mask, other=0), mask


@triton.jit(do_not_specialize=["num_query_rows", "num_rows", "num_query_programs"])
def rope_write_kv_kernel(
    query_pointer,
    key_pointer,
    value_pointer,
    stored_key_pointer,
    stored_value_pointer,
    key_scale_pointer,
    value_scale_pointer,
    k_scale_pointer,
    v_scale_pointer,
    positions_pointer,
    cos_sin_pointer,
    slots_pointer,
    query_token_stride,
    query_head_stride,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    block_stride,
    scale_block_stride,
    num_query_rows,
    num_rows,
    num_query_programs,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    HALF: tl.constexpr,
    HALF_TILE: tl.constexpr,
    REST_TILE: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    VALUE_TILE: tl.constexpr,
    STORED: tl.constexpr,
    IS_INTERLEAVED: tl.constexpr,
    ROWS: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
):
    """Rotate queries in place (the first programs), or rotate and store keys, and store values."""
    pairs = tl.arange(0, HALF_TILE)
    # The first partners of the pairs, and how far the second ones are from them.
    first_features = pairs * (2 if IS_INTERLEAVED else 1)
    partner: tl.constexpr = 1 if IS_INTERLEAVED else HALF
    program = tl.program_id(0)
    if program < num_query_programs:
        rows = program * ROWS + tl.arange(0, ROWS)
        is_row = rows < num_query_rows
        cosines, sines, mask = angles(rows, is_row, positions_pointer, cos_sin_pointer, HEADS, HALF, HALF_TILE)
        given = (rows // HEADS).to(tl.int64) * query_token_stride + (rows % HEADS) * query_head_stride
        pointers = query_pointer + given[:, None] + first_features[None, :]
        first, second = turned(pointers, partner, cosines, sines, mask, IS_INTERPRETED)
        tl.store(pointers, first, mask=mask)
        tl.store(pointers + partner, second, mask=mask)
        return

    rows = (program - num_query_programs) * ROWS + tl.arange(0, ROWS)
    is_row = rows < num_rows
    blocks, places, is_stored = cached_rows(rows, is_row, slots_pointer, block_stride, KV_HEADS, BLOCK_SIZE)
    cosines, sines, mask = angles(rows, is_stored, positions_pointer, cos_sin_pointer, KV_HEADS, HALF, HALF_TILE)
    given = (rows // KV_HEADS).to(tl.int64) * key_token_stride + (rows % KV_HEADS) * key_head_stride
    first, second = turned(
        key_pointer + given[:, None] + first_features[None, :], partner, cosines, sines, mask, IS_INTERPRETED
    )
    first, second = first.to(tl.float32), second.to(tl.float32)
    magnitudes = tl.maximum(largest_magnitudes(first), largest_magnitudes(second))
    has_nan = any_nan(first) | any_nan(second)
    if REST_TILE > 0:
        features = 2 * HALF + tl.arange(0, REST_TILE)
        rest_mask = is_stored[:, None] & (features < HEAD_SIZE)[None, :]
        rest = tl.load(key_pointer + given[:, None] + features[None, :], mask=rest_mask, other=0).to(tl.float32)
        magnitudes = tl.maximum(magnitudes, largest_magnitudes(rest))
        has_nan = has_nan | any_nan(rest)
    scale = None
    if STORED == "int8":
        scale = int8_scale(magnitudes, has_nan)
        tl.store(key_scale_pointer + blocks * scale_block_stride + places, scale, mask=is_stored)
    stored = stored_key_pointer + (blocks * block_stride + places * HEAD_SIZE)[:, None]
    pointers = stored + first_features[None, :]
    store_numbers(pointers, first, mask, scale, k_scale_pointer, STORED, IS_INTERPRETED)
    store_numbers(pointers + partner, second, mask, scale, k_scale_pointer, STORED, IS_INTERPRETED)
    if REST_TILE > 0:
        store_numbers(stored + features[None, :], rest, rest_mask, scale, k_scale_pointer, STORED, IS_INTERPRETED)
    write_rows(
        value_pointer,
        stored_value_pointer,
        value_scale_pointer,
        v_scale_pointer,
        slots_pointer,
        value_token_stride,
        value_head_stride,
        block_stride,
        scale_block_stride,
        rows,
        num_rows,
        KV_HEADS,
        BLOCK_SIZE,
        VALUE_SIZE,
        VALUE_TILE,
        STORED,
        IS_INTERPRETED,
    )
