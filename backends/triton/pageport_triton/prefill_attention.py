"""``prefill_attention``: requests with any number of queries, behind any cached prefix, in one launch."""

from collections.abc import Iterator
from typing import Any

from jaxtyping import Float
from torch import Tensor

from pageport.backend.batch import AttentionBatch
from pageport.backend.kv import AttentionParams, KVSpec
from pageport_triton.attention_arguments import (
    attention_case,
    has_matrix_product,
    head_chunk,
    head_class,
    shape_constants,
    tensor_arguments,
    tensor_types,
    variants,
)
from pageport_triton.compile_case import CompileCase
from pageport_triton.configurations import Configuration, PrefillTile, configuration_of
from pageport_triton.kv_pool import TritonKVPool
from pageport_triton.padding import clear_padding
from pageport_triton.prefill_attention_kernel import prefill_attention_kernel


def prefill_attention(
    pool: TritonKVPool,
    layer: int,
    query: Float[Tensor, "tokens heads head_size"],
    params: AttentionParams,
    batch: AttentionBatch,
    out: Float[Tensor, "tokens heads value_head_size"],
    configuration: Configuration,
) -> None:
    """Attend for the requests from ``batch.num_decodes`` on; the output of padding is zero.

    Each program finds its request in ``query_start_loc`` on the device: nothing is prepared or copied for a step.
    """
    num_requests = batch.num_requests - batch.num_decodes
    if num_requests == 0:
        return
    clear_padding(batch, out)
    spec = pool.spec
    group = query.shape[1] // spec.num_kv_heads
    tile = configuration.prefill[head_class(spec, query.dtype)]
    group_tile = min(group, tile.rows)
    constants = shape_constants(spec, group, configuration, is_interpreted=query.is_cpu)
    # Tiles that no request needs end at once: how many there are follows from bounds alone.
    num_tiles = batch.num_tokens // (tile.rows // group_tile) + num_requests
    grid = (num_tiles, spec.num_kv_heads * -(-group // group_tile))
    prefill_attention_kernel[grid](
        **tensor_arguments(pool, layer, query, params, batch, out),
        **constants,
        **tile_constants(spec, group_tile, params.causal, tile),
        first_request=batch.num_decodes,
        num_requests=batch.num_requests,
        **tile.options,
    )


def tile_constants(spec: KVSpec, group_tile: int, causal: bool, tile: PrefillTile) -> dict[str, Any]:
    """Return the compile-time constants that the table decides."""
    chunk = head_chunk(spec, tile.head_chunk)
    return {"GROUP_TILE": group_tile, "CAUSAL": causal, "ROWS": tile.rows, "KEYS": tile.keys, "HEAD_CHUNK": chunk}


def compile_cases(architecture: str) -> Iterator[CompileCase]:
    """Yield the launches that the compile check covers."""
    configuration = configuration_of(architecture)
    for variant in variants():
        tile = configuration.prefill[variant.head_class]
        constants = shape_constants(variant.spec, variant.group, configuration, is_interpreted=False)
        constants |= tile_constants(variant.spec, min(variant.group, tile.rows), variant.causal, tile)
        types = dict(tensor_types(variant)) | dict.fromkeys(("first_request", "num_requests"), "i32")
        options = tile.options
        expected = has_matrix_product(variant, configuration)
        yield attention_case(
            prefill_attention_kernel, variant, types, constants, options, expects_matrix_product=expected
        )
