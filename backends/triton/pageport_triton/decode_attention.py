"""``decode_attention``: one query a request, its keys divided among as many programs as keep the device busy."""

from collections.abc import Iterator
from typing import Any

import torch
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
from pageport_triton.configurations import Configuration, DecodeTile, configuration_of
from pageport_triton.decode_attention_kernel import decode_attention_kernel, merge_splits_kernel
from pageport_triton.kv_pool import TritonKVPool
from pageport_triton.padding import clear_padding

# Query heads of one KV head that a program takes: the fewest rows that a matrix product takes. More would need
# registers that keep other programs waiting; the rare larger groups read their keys once more for every 16 heads.
ROWS = 16
# The merging program holds so many partial results.
MOST_SPLITS = 64
MERGE_OPTIONS: dict[str, Any] = {"num_warps": 8}


def decode_attention(
    pool: TritonKVPool,
    layer: int,
    query: Float[Tensor, "tokens heads head_size"],
    params: AttentionParams,
    batch: AttentionBatch,
    out: Float[Tensor, "tokens heads value_head_size"],
    configuration: Configuration,
) -> None:
    """Attend for the requests before ``batch.num_decodes``, which have one query each; the output of padding is zero.

    Tokens behind the last request are cleared by whoever attends for it.
    Lengths are read when the kernels run; how many splits there are follows from ``batch.max_seq_len`` alone, so that
    a captured launch serves any lengths up to that.
    """
    if batch.num_decodes == 0:
        return
    if batch.num_decodes == batch.num_requests:
        clear_padding(batch, out)
    spec = pool.spec
    heads = query.shape[1]
    group = heads // spec.num_kv_heads
    tile = configuration.decode[head_class(spec, query.dtype)]
    groups = spec.num_kv_heads * -(-group // ROWS)
    splits = num_splits(batch.max_seq_len, params.sliding_window, batch.num_decodes * groups, tile, configuration)
    constants = shape_constants(spec, group, configuration, is_interpreted=query.is_cpu)
    constants |= tile_constants(spec, tile, configuration)
    arguments = tensor_arguments(pool, layer, query, params, batch, out)
    partial = log_total = None
    if splits > 1:
        shape = (batch.num_decodes, heads, splits)
        partial = torch.empty(*shape, spec.value_head_size, dtype=torch.float32, device=query.device)
        log_total = torch.empty(shape, dtype=torch.float32, device=query.device)
    decode_attention_kernel[(batch.num_decodes, groups, splits)](
        **arguments,
        **constants,
        partial_pointer=partial,
        log_total_pointer=log_total,
        **tile.options,
    )
    if splits > 1:
        merge_splits_kernel[(batch.num_decodes, heads)](
            partial_pointer=partial,
            log_total_pointer=log_total,
            num_splits=splits,
            **{name: value for name, value in arguments.items() if name in merge_splits_kernel.arg_names},
            **merge_constants(heads, constants),
            **MERGE_OPTIONS,
        )


def num_splits(
    max_length: int, window: int | None, programs: int, tile: DecodeTile, configuration: Configuration
) -> int:
    """Return the number of splits where there are ``programs`` without any."""
    split = configuration.split
    most_keys = max_length if window is None else min(max_length, window + tile.keys)
    longest = -(-most_keys // (tile.keys * split.least_tiles))
    wanted = -(-split.wanted_programs // programs)
    return max(1, min(longest, wanted, MOST_SPLITS))


def tile_constants(spec: KVSpec, tile: DecodeTile, configuration: Configuration) -> dict[str, Any]:
    """Return the compile-time constants that the table decides."""
    chunk = head_chunk(spec, tile.head_chunk)
    return {"ROWS": ROWS, "KEYS": tile.keys, "HEAD_CHUNK": chunk, "LEAST_TILES": configuration.split.least_tiles}


def merge_constants(heads: int, constants: dict[str, Any]) -> dict[str, Any]:
    """Return the constants of the merging kernel."""
    names = ("KEYS", "LEAST_TILES", "VALUE_SIZE", "VALUE_TILE", "IS_INTERPRETED")
    return {"HEADS": heads, "MOST_SPLITS": MOST_SPLITS} | {name: constants[name] for name in names}


def compile_cases(architecture: str) -> Iterator[CompileCase]:
    """Yield the launches of both kernels that the compile check covers; with and without splits by turns."""
    configuration = configuration_of(architecture)
    for turn, variant in enumerate(variants()):
        spec = variant.spec
        tile = configuration.decode[variant.head_class]
        constants = shape_constants(spec, variant.group, configuration, is_interpreted=False)
        constants |= tile_constants(spec, tile, configuration)
        types = dict(tensor_types(variant))
        if turn % 2:
            types |= dict.fromkeys(("partial_pointer", "log_total_pointer"), "*fp32") | {"num_splits": "i32"}
            heads = spec.num_kv_heads * variant.group
            yield attention_case(merge_splits_kernel, variant, types, merge_constants(heads, constants), MERGE_OPTIONS)
        options = tile.options
        expected = has_matrix_product(variant, configuration)
        yield attention_case(
            decode_attention_kernel, variant, types, constants, options, expects_matrix_product=expected
        )
