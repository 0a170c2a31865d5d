"""``write_kv`` and ``rope_write_kv``: store a step's keys and values, rounded to what the cache holds."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from jaxtyping import Float, Int64
from torch import Tensor

from pageport.backend.kv import AttentionParams, KVSpec
from pageport.errors import UnsupportedFeature
from pageport_triton.attention_arguments import AttentionVariant, attention_case, power_of_two, tensor_types, variants
from pageport_triton.compile_case import CompileCase
from pageport_triton.configurations import Configuration, configuration_of
from pageport_triton.kv_pool import TritonKVPool
from pageport_triton.write_kv_kernel import rope_write_kv_kernel, write_kv_kernel

# Of the variants of attention, one in so many is compiled: each dtype still meets several heads.
COMPILED_STEP = 3


def write_kv(
    pool: TritonKVPool,
    layer: int,
    key: Float[Tensor, "tokens kv_heads head_size"],
    value: Float[Tensor, "tokens kv_heads value_head_size"],
    slot_mapping: Int64[Tensor, "tokens"],
    params: AttentionParams,
    configuration: Configuration,
) -> None:
    """Store keys and values; slot -1 is skipped.

    Numbers are rounded as the plain-torch reference rounds them, to the last bit.

    Raises:
        UnsupportedFeature: ``k_scale`` or ``v_scale`` for a dtype that is no 8-bit float.
    """
    check_scales(pool.spec, params)
    num_rows = key.shape[0] * key.shape[1]
    if num_rows == 0:
        return
    write = configuration.write
    write_kv_kernel[(-(-num_rows // write.rows),)](
        **_tensors(pool, layer, key, value, slot_mapping, params),
        **_constants(pool.spec, write.rows, is_interpreted=key.is_cpu),
        **_whole_heads(pool.spec),
        num_rows=num_rows,
        **write.options,
    )


def rope_write_kv(
    pool: TritonKVPool,
    layer: int,
    query: Float[Tensor, "tokens heads head_size"],
    key: Float[Tensor, "tokens kv_heads head_size"],
    value: Float[Tensor, "tokens kv_heads value_head_size"],
    positions: Int64[Tensor, "tokens"],
    cos_sin: Float[Tensor, "positions rotary_size"],
    interleaved: bool,
    slot_mapping: Int64[Tensor, "tokens"],
    params: AttentionParams,
    configuration: Configuration,
) -> None:
    """Rotate queries in place, and store rotated keys, and values, in one launch; ``key`` stays as it is.

    A rotated number is rounded to its dtype before it is rounded to the cache's.

    Raises:
        UnsupportedFeature: ``k_scale`` or ``v_scale`` for a dtype that is no 8-bit float.
    """
    check_scales(pool.spec, params)
    if key.shape[0] == 0:
        return
    write = configuration.write
    num_tokens, num_heads = query.shape[:2]
    num_query_rows, num_rows = num_tokens * num_heads, num_tokens * key.shape[1]
    num_query_programs = -(-num_query_rows // write.rows)
    rope_write_kv_kernel[(num_query_programs + -(-num_rows // write.rows),)](
        **_tensors(pool, layer, key, value, slot_mapping, params),
        **_constants(pool.spec, write.rows, is_interpreted=key.is_cpu),
        **_rotation(pool.spec, num_heads, cos_sin.shape[1], interleaved),
        query_pointer=query,
        positions_pointer=positions,
        cos_sin_pointer=cos_sin,
        query_token_stride=query.stride(0),
        query_head_stride=query.stride(1),
        num_query_rows=num_query_rows,
        num_rows=num_rows,
        num_query_programs=num_query_programs,
        **write.options,
    )


def check_scales(spec: KVSpec, params: AttentionParams) -> None:
    """Refuse fixed scales where the cache has none or its own.

    Raises:
        UnsupportedFeature: ``k_scale`` or ``v_scale`` for a dtype that is no 8-bit float.
    """
    has_scales = params.k_scale is not None or params.v_scale is not None
    if has_scales and not spec.dtype.startswith("float8"):
        raise UnsupportedFeature(
            f"A KV cache in {spec.dtype} takes no k_scale and no v_scale; they are for 8-bit floats."
        )


def _tensors(
    pool: TritonKVPool, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor, params: AttentionParams
) -> dict[str, Any]:
    storage = pool.layers[layer]
    return {
        "key_pointer": key,
        "value_pointer": value,
        "stored_key_pointer": storage.key,
        "stored_value_pointer": storage.value,
        "key_scale_pointer": storage.key_scale,
        "value_scale_pointer": storage.value_scale,
        "k_scale_pointer": params.k_scale,
        "v_scale_pointer": params.v_scale,
        "slots_pointer": slot_mapping,
        "key_token_stride": key.stride(0),
        "key_head_stride": key.stride(1),
        "value_token_stride": value.stride(0),
        "value_head_stride": value.stride(1),
        "block_stride": pool.block_stride,
        "scale_block_stride": pool.scale_block_stride,
    }


def _constants(spec: KVSpec, rows: int, *, is_interpreted: bool) -> dict[str, Any]:
    return {
        "KV_HEADS": spec.num_kv_heads,
        "BLOCK_SIZE": spec.block_size,
        "HEAD_SIZE": spec.head_size,
        "VALUE_SIZE": spec.value_head_size,
        "VALUE_TILE": power_of_two(spec.value_head_size),
        "STORED": spec.dtype,
        "ROWS": rows,
        "IS_INTERPRETED": is_interpreted,
    }


def _whole_heads(spec: KVSpec) -> dict[str, Any]:
    return {"HEAD_TILE": power_of_two(spec.head_size)}


def _rotation(spec: KVSpec, num_heads: int, rotary_size: int, interleaved: bool) -> dict[str, Any]:
    rest = spec.head_size - rotary_size
    return {
        "HEADS": num_heads,
        "HALF": rotary_size // 2,
        "HALF_TILE": power_of_two(rotary_size // 2),
        "REST_TILE": power_of_two(rest) if rest else 0,
        "IS_INTERLEAVED": interleaved,
    }


def compile_cases(architecture: str) -> Iterator[CompileCase]:
    """Yield the launches of both kernels that the compile check covers."""
    configuration = configuration_of(architecture)
    for turn, variant in enumerate(islice(variants(), 0, None, COMPILED_STEP)):
        spec, write = variant.spec, configuration.write
        constants = _constants(spec, write.rows, is_interpreted=False)
        types = _types(variant)
        options = write.options
        yield attention_case(write_kv_kernel, variant, types, constants | _whole_heads(spec), options)
        rotary_size = spec.head_size // (1, 2)[turn % 2]
        rotation = _rotation(spec, spec.num_kv_heads * variant.group, rotary_size, interleaved=turn % 3 == 0)
        yield attention_case(rope_write_kv_kernel, variant, types, constants | rotation, options)


def _types(variant: AttentionVariant) -> dict[str, str]:
    types = dict(tensor_types(variant))
    compute, stored = types["query_pointer"], types["key_pointer"]
    types |= dict.fromkeys(("key_pointer", "value_pointer"), compute)
    types |= dict.fromkeys(("stored_key_pointer", "stored_value_pointer"), stored)
    types |= dict.fromkeys(("slots_pointer", "positions_pointer"), "*i64") | {"cos_sin_pointer": "*fp32"}
    strides = ("key_token_stride", "key_head_stride", "value_token_stride", "value_head_stride")
    return types | dict.fromkeys((*strides, "num_rows", "num_query_rows", "num_query_programs"), "i32")
