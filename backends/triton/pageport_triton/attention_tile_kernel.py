"""The step that both attention kernels repeat: queries meet one tile of keys and values of the paged cache."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# pyright: reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl

from pageport_triton.kv_rounding_kernel import dequantised

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def load_matrix(
    pointer,
    rows,
    is_row,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
    IS_MASKED: tl.constexpr,
):
    """Return [rows, TILE]: the first ``SIZE`` numbers from ``rows`` on, then zeros; zeros where it is no row."""
    return load_columns(pointer, rows, is_row, 0, SIZE, TILE, TILE, IS_MASKED)


@triton.jit
def load_columns(
    pointer,
    rows,
    is_row,
    first_column,
    SIZE: tl.constexpr,
    TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
    IS_MASKED: tl.constexpr,
):
    """Return [rows, COLUMNS] of what ``load_matrix`` returns, from ``first_column`` on."""
    columns = first_column + tl.arange(0, COLUMNS)
    pointers = pointer + rows[:, None] + columns[None, :]
    if IS_MASKED:
        if SIZE == TILE:
            matrix = tl.load(pointers, mask=is_row[:, None], other=0)
        else:
            matrix = tl.load(pointers, mask=is_row[:, None] & (columns < SIZE)[None, :], other=0)
    elif SIZE == TILE:
        matrix = tl.load(pointers)
    else:
        matrix = tl.load(pointers, mask=(columns < SIZE)[None, :], other=0)
    return matrix


@triton.jit
def attend_tile(
    query,  # [ROWS, HEAD_TILE], or None where features come in chunks
    query_pointer,
    query_rows,  # [ROWS]
    is_row,  # [ROWS]
    positions,  # [ROWS]
    slopes,  # [ROWS] or None
    keys,  # positions [KEYS]
    first_key,
    end_key,
    peak,  # [ROWS], base 2
    total,  # [ROWS]
    weighted,  # [ROWS, VALUE_TILE]
    table,  # of this request
    key_pointer,  # of this layer and KV head, in block 0
    value_pointer,
    key_scale_pointer,
    value_scale_pointer,
    block_stride,
    scale_block_stride,
    scale,
    softcap,
    window,
    HAS_ROW_MASK: tl.constexpr,
    CAUSAL: tl.constexpr,
    IS_MASKED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEAD_SIZE: tl.constexpr,
    HEAD_TILE: tl.constexpr,
    HEAD_CHUNK: tl.constexpr,
    VALUE_SIZE: tl.constexpr,
    VALUE_TILE: tl.constexpr,
    STORED: tl.constexpr,
    HAS_FLOAT8: tl.constexpr,
    FACTOR: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Return peak, total and weighted values with this tile added (arXiv:1805.02867).

    Keys outside ``first_key`` … ``end_key - 1`` are not read: their slots and table entries may hold anything.
    """
    is_readable = (keys >= first_key) & (keys < end_key)
    if IS_MASKED:
        blocks = tl.load(table + keys // BLOCK_SIZE, mask=is_readable, other=0).to(tl.int64)
    else:
        blocks = tl.load(table + keys // BLOCK_SIZE).to(tl.int64)
    slots = keys % BLOCK_SIZE
    key_rows = blocks * block_stride + slots * HEAD_SIZE
    if HEAD_CHUNK == HEAD_TILE:
        stored = load_matrix(key_pointer, key_rows, is_readable, HEAD_SIZE, HEAD_TILE, IS_MASKED)
        key = dequantised(stored, STORED, HAS_FLOAT8, FACTOR)
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
    else:
        scores = tl.zeros([query_rows.shape[0], keys.shape[0]], tl.float32)
        for feature in range(0, HEAD_TILE, HEAD_CHUNK):
            part = load_columns(query_pointer, query_rows, is_row, feature, HEAD_SIZE, HEAD_TILE, HEAD_CHUNK, True)
            stored = load_columns(
                key_pointer, key_rows, is_readable, feature, HEAD_SIZE, HEAD_TILE, HEAD_CHUNK, IS_MASKED
            )
            key = dequantised(stored, STORED, HAS_FLOAT8, FACTOR)
            scores = tl.dot(part.to(FACTOR), tl.trans(key), scores, input_precision=PRECISION)
    if STORED == "int8":
        scale_places = blocks * scale_block_stride + slots
        scores *= tl.load(key_scale_pointer + scale_places, mask=is_readable, other=0)[None, :]
    if softcap is None:
        scores *= scale * LOG2_E
    else:
        # softcap * tanh(x), with tanh(x) = 1 - 2 / (exp(2x) + 1)
        doubled = tl.exp2(scores * (scale / softcap * (2 * LOG2_E)))
        scores = (softcap * LOG2_E) * (1 - 2 / (doubled + 1))
    if slopes is not None:
        scores += (slopes * LOG2_E)[:, None] * (keys[None, :] - positions[:, None]).to(tl.float32)
    if IS_MASKED:
        is_visible = is_readable[None, :]
        if CAUSAL:
            is_visible = is_visible & (keys[None, :] <= positions[:, None])
        if HAS_ROW_MASK and window is not None:
            is_visible = is_visible & (keys[None, :] > positions[:, None] - window)
        scores = tl.where(is_visible, scores, float("-inf"))
    new_peak = tl.maximum(peak, tl.max(scores, 1))
    # A row that has seen nothing yet has the peak -inf.
    subtracted = tl.where(new_peak == float("-inf"), 0.0, new_peak)
    decay = tl.exp2(peak - subtracted)
    weights = tl.exp2(scores - subtracted[:, None])
    total = total * decay + tl.sum(weights, 1)
    if STORED == "int8":
        weights *= tl.load(value_scale_pointer + scale_places, mask=is_readable, other=0)[None, :]
    value_rows = blocks * block_stride + slots * VALUE_SIZE
    stored = load_matrix(value_pointer, value_rows, is_readable, VALUE_SIZE, VALUE_TILE, IS_MASKED)
    value = dequantised(stored, STORED, HAS_FLOAT8, FACTOR)
    weighted = tl.dot(weights.to(FACTOR), value, weighted * decay[:, None], input_precision=PRECISION)
    return new_peak, total, weighted


@triton.jit
def normalised(total, weighted, v_scale_pointer):
    """Return weighted values over their total; zeros where no key was seen."""
    result = tl.where((total == 0)[:, None], 0.0, weighted / total[:, None])
    if v_scale_pointer is not None:
        result *= tl.load(v_scale_pointer)
    return result
