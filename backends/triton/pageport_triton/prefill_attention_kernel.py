"""The kernel of prefill attention: tiles of queries of any requests, over everything that these see."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# pyright: reportArgumentType=false, reportAssignmentType=false, reportOperatorIssue=false, reportPossiblyUnboundVariable=false

import triton
import triton.language as tl

from pageport_triton.attention_tile_kernel import LOG2_E, attend_tile, load_matrix, normalised
from pageport_triton.kv_rounding_kernel import rounded_to

# Requests looked at together when a program looks for its own.
SEARCHED = tl.constexpr(128)


@triton.jit
def request_of_tile(tile, starts_pointer, first_request, num_requests, first_token, QUERIES: tl.constexpr):
    """Return the request that a tile belongs to: request r's tiles begin at ``tokens before r // QUERIES + r``.

    That leaves each request at least as many tiles as it needs.
    """
    count = first_request * 0
    for start in range(first_request, num_requests, SEARCHED):
        requests = start + tl.arange(0, SEARCHED)
        is_request = requests < num_requests
        tokens = tl.load(starts_pointer + requests, mask=is_request, other=0) - first_token
        first_tiles = tokens // QUERIES + (requests - first_request)
        count += tl.sum((is_request & (first_tiles <= tile)).to(tl.int32), 0)
    return first_request + count - 1


@triton.jit(do_not_specialize=["first_request", "num_requests", "table_stride"])
def prefill_attention_kernel(
    query_pointer,
    out_pointer,
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
    first_request,
    num_requests,
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
    CAUSAL: tl.constexpr,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_TILE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
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
    """Attend for ``ROWS // GROUP_TILE`` queries of one request and the heads of one group; rows are both."""
    tile_queries: tl.constexpr = ROWS // GROUP_TILE
    # Late tiles see most keys: they come first, so that a device does not end with them.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1) % KV_HEADS
    first_token = tl.load(starts_pointer + first_request)
    request = request_of_tile(tile, starts_pointer, first_request, num_requests, first_token, tile_queries)
    start_token = tl.load(starts_pointer + request)
    num_queries = tl.load(starts_pointer + request + 1) - start_token
    own_tile = tile - ((start_token - first_token) // tile_queries + (request - first_request))
    first_query = own_tile * tile_queries
    if first_query >= num_queries:
        return
    length = tl.load(lengths_pointer + request)

    rows = tl.arange(0, ROWS)
    queries = first_query + rows // GROUP_TILE
    members = tl.program_id(1) // KV_HEADS * GROUP_TILE + rows % GROUP_TILE
    heads = kv_head * GROUP + members
    is_row = (rows < tile_queries * GROUP_TILE) & (queries < num_queries) & (members < GROUP)
    tokens = (start_token + queries).to(tl.int64)
    query_rows = tokens * query_token_stride + heads * query_head_stride
    factor: tl.constexpr = tl.float32 if IS_INTERPRETED else query_pointer.dtype.element_ty
    query = None
    if HEAD_CHUNK == HEAD_TILE:
        query = load_matrix(query_pointer, query_rows, is_row, HEAD_SIZE, HEAD_TILE, True).to(factor)
    positions = length - num_queries + queries
    first_position = length - num_queries + first_query
    end_position = tl.minimum(first_position + tile_queries, length)

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

    peak = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    if sinks_pointer is not None:
        peak = tl.load(sinks_pointer + heads, mask=is_row, other=0).to(tl.float32) * LOG2_E
        total += 1.0
    weighted = tl.zeros([ROWS, VALUE_TILE], tl.float32)

    end_key = length
    whole = length
    if CAUSAL:
        end_key = end_position
        whole = tl.minimum(first_position + 1, length)
    first_key = length * 0
    # Tiles before this one are seen whole by every query.
    masked_start = tl.maximum(whole, 0) // KEYS * KEYS
    if window is not None:
        first_key = tl.maximum(first_position - window + 1, 0)
        masked_start = first_key // KEYS * KEYS
    else:
        for key in range(0, masked_start, KEYS):
            peak, total, weighted = attend_tile(
                query,
                query_pointer,
                query_rows,
                is_row,
                positions,
                slopes,
                key + tl.arange(0, KEYS),
                first_key,
                end_key,
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
                IS_MASKED=False,
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
    for key in range(masked_start, end_key, KEYS):
        peak, total, weighted = attend_tile(
            query,
            query_pointer,
            query_rows,
            is_row,
            positions,
            slopes,
            key + tl.arange(0, KEYS),
            first_key,
            end_key,
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
            HAS_ROW_MASK=True,
            CAUSAL=CAUSAL,
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
    result = rounded_to(result, out_pointer.dtype.element_ty, IS_INTERPRETED)
    features = tl.arange(0, VALUE_TILE)
    out_rows = tokens * out_token_stride + heads * out_head_stride
    is_stored = is_row[:, None] & (features < VALUE_SIZE)[None, :]
    tl.store(out_pointer + out_rows[:, None] + features[None, :], result, mask=is_stored)
