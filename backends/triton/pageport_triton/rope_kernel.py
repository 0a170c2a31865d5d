"""The kernel of rotary embedding: pairs of features, turned by a table of cosines and sines."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# pyright: reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl

from pageport_triton.kv_rounding_kernel import rounded_to


@triton.jit
def rotate(
    heads_pointer,
    positions_pointer,
    cos_sin_pointer,
    first_row,
    num_rows,
    num_heads,
    token_stride,
    head_stride,
    cos_sin_stride,
    half,
    IS_INTERLEAVED: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    rows = first_row + tl.arange(0, ROWS)
    in_range = rows < num_rows
    tokens = rows // num_heads
    heads = rows % num_heads
    angles = tl.arange(0, BLOCK)[None, :]
    mask = in_range[:, None] & (angles < half)
    positions = tl.load(positions_pointer + tokens, mask=in_range, other=0).to(tl.int64)
    table = cos_sin_pointer + positions[:, None] * cos_sin_stride + angles
    cosines = tl.load(table, mask=mask, other=0.0).to(tl.float32)
    sines = tl.load(table + half, mask=mask, other=0.0).to(tl.float32)
    row_starts = heads_pointer + (tokens.to(tl.int64) * token_stride + heads.to(tl.int64) * head_stride)[:, None]
    if IS_INTERLEAVED:
        first = row_starts + 2 * angles
        second = first + 1
    else:
        first = row_starts + angles
        second = first + half
    x = tl.load(first, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(second, mask=mask, other=0.0).to(tl.float32)
    dtype = heads_pointer.dtype.element_ty
    tl.store(first, rounded_to(x * cosines - y * sines, dtype, IS_INTERPRETED), mask=mask)
    tl.store(second, rounded_to(y * cosines + x * sines, dtype, IS_INTERPRETED), mask=mask)


@triton.jit(do_not_specialize=["num_tokens"])
def rope_kernel(
    query_pointer,
    key_pointer,
    positions_pointer,
    cos_sin_pointer,
    num_tokens,
    num_query_heads,
    num_key_heads,
    query_token_stride,
    query_head_stride,
    key_token_stride,
    key_head_stride,
    cos_sin_stride,
    half,
    IS_INTERLEAVED: tl.constexpr,
    IS_INTERPRETED: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # The first programs turn queries, the others keys.
    query_programs = tl.cdiv(num_tokens * num_query_heads, ROWS)
    program = tl.program_id(0)
    if program < query_programs:
        rotate(
            query_pointer,
            positions_pointer,
            cos_sin_pointer,
            program * ROWS,
            num_tokens * num_query_heads,
            num_query_heads,
            query_token_stride,
            query_head_stride,
            cos_sin_stride,
            half,
            IS_INTERLEAVED,
            IS_INTERPRETED,
            ROWS,
            BLOCK,
        )
    else:
        rotate(
            key_pointer,
            positions_pointer,
            cos_sin_pointer,
            (program - query_programs) * ROWS,
            num_tokens * num_key_heads,
            num_key_heads,
            key_token_stride,
            key_head_stride,
            cos_sin_stride,
            half,
            IS_INTERLEAVED,
            IS_INTERPRETED,
            ROWS,
            BLOCK,
        )
