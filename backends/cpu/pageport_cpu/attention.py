"""Attention of the native device."""

from jaxtyping import Float
from torch import Tensor

from pageport.backend import AttentionParams
from pageport.backend.batch import AttentionBatch
from pageport_cpu.kv_pool import CpuKVPool, stored_dtype
from pageport_cpu.library import DTYPE_CODES, Arguments, Integer, Library, Pointer, Real, pointer


class AttentionArguments(Arguments):
    kernel = "attention"
    token_counts = ("num_tokens",)
    request_counts = ("num_requests",)
    _fields_ = (
        ("query", Pointer),
        ("out", Pointer),
        ("keys", Pointer),
        ("values", Pointer),
        ("key_scales", Pointer),
        ("value_scales", Pointer),
        ("query_start_loc", Pointer),
        ("seq_lens", Pointer),
        ("block_table", Pointer),
        ("sinks", Pointer),
        ("slopes", Pointer),
        ("k_scale", Pointer),
        ("v_scale", Pointer),
        ("num_requests", Integer),
        ("num_tokens", Integer),
        ("heads", Integer),
        ("kv_heads", Integer),
        ("head_size", Integer),
        ("value_head_size", Integer),
        ("block_size", Integer),
        ("query_token_stride", Integer),
        ("query_head_stride", Integer),
        ("out_token_stride", Integer),
        ("out_head_stride", Integer),
        ("block_table_stride", Integer),
        ("block_stride", Integer),
        ("scale_block_stride", Integer),
        ("dtype", Integer),
        ("stored_dtype", Integer),
        ("causal", Integer),
        ("window", Integer),
        ("scale", Real),
        ("softcap", Real),
    )


def attention(
    library: Library,
    pool: CpuKVPool,
    layer: int,
    query: Float[Tensor, "tokens heads head_size"],
    params: AttentionParams,
    batch: AttentionBatch,
    out: Float[Tensor, "tokens heads value_head_size"],
) -> None:
    """Attend over the paged cache, decodes and prefills in one call; the output of padding is zero.

    Lengths and block table are read when the kernel runs, so that a recorded step serves any batch of its size.
    """
    spec = pool.spec
    library.run(
        AttentionArguments(
            pointer(query),
            pointer(out),
            *pool.addresses(layer),
            pointer(batch.query_start_loc),
            pointer(batch.seq_lens),
            pointer(batch.block_table),
            pointer(params.sinks),
            pointer(params.alibi),
            pointer(params.k_scale),
            pointer(params.v_scale),
            batch.num_requests,
            batch.num_tokens,
            query.shape[1],
            spec.num_kv_heads,
            spec.head_size,
            spec.value_head_size,
            spec.block_size,
            *query.stride()[:2],
            *out.stride()[:2],
            batch.block_table.stride(0),
            *pool.strides,
            DTYPE_CODES[query.dtype],
            DTYPE_CODES[stored_dtype(spec)],
            params.causal,
            params.sliding_window or 0,
            params.scale,
            params.softcap or 0.0,
        )
    )
