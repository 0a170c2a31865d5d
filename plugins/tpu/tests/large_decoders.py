"""Decoders of realistic sizes, as shapes alone: nothing is allocated for them."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
from pageport_tpu.kv import LayerCache, Layers
from pageport_tpu.parameters import LayerParameters, Norm, Parameters, Projection
from pageport_tpu.program import StepShapes, array_shape, input_shapes

from pageport.backend import (
    AttentionDescription,
    AttentionParams,
    DecoderDescription,
    KVSpec,
    LayerDescription,
    MLPDescription,
    NormDescription,
    RopeDescription,
)
from pageport.backend.program import Bucket

NORM = NormDescription(kind="rms", epsilon=1e-5)


def decoder(
    heads: int,
    kv_heads: int,
    head_size: int,
    *,
    block_size: int,
    dtype: str = "bfloat16",
    hidden_size: int = 256,
    vocab_size: int = 1024,
    max_positions: int = 2048,
    **params: Any,
) -> DecoderDescription:
    """Describe two layers like a LLaMA's: tiling depends on heads and blocks, and hardly on the rest."""
    attention = AttentionDescription(
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_size=head_size,
        params=AttentionParams(scale=head_size**-0.5, **params),
        cache_group=0,
        cache_layer=0,
        rope=0,
    )
    mlp = MLPDescription(features=7 * hidden_size // 2, activation="silu", gated=True)
    layer = LayerDescription(attention_norm=NORM, attention=attention, mlp_norm=NORM, mlp=mlp)
    cache = KVSpec(
        num_layers=2,
        num_kv_heads=kv_heads,
        head_size=head_size,
        value_head_size=head_size,
        block_size=block_size,
        dtype=dtype,
    )
    return DecoderDescription(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        compute_dtype=dtype,
        max_positions=max_positions,
        cache_groups=(cache,),
        layers=(layer, replace(layer, attention=replace(attention, cache_layer=1))),
        final_norm=NORM,
        ropes=(RopeDescription(rotary_size=head_size),),
    )


def shapes_of(description: DecoderDescription, bucket: Bucket, num_blocks: int) -> StepShapes:
    """Return the shapes of one of the decoders above."""
    dtype, hidden = jnp.dtype(description.compute_dtype), description.hidden_size
    norm = Norm(array_shape((hidden,), jnp.float32), None)

    def projection(rows: int, columns: int) -> Projection:
        return Projection(array_shape((rows, columns), dtype), None)

    def layer(described: LayerDescription) -> LayerParameters:
        attention, mlp = described.attention, described.mlp
        size, heads = attention.head_size, attention.num_heads
        return LayerParameters(
            attention_norm=norm,
            qkv=projection((heads + 2 * attention.num_kv_heads) * size, hidden),
            output=projection(hidden, heads * size),
            mlp_norm=norm,
            up=projection(2 * mlp.features, hidden),
            down=projection(hidden, mlp.features),
            attention_output_norm=None,
            mlp_output_norm=None,
            q_norm=None,
            k_norm=None,
        )

    head = projection(description.vocab_size, hidden)
    tables = [array_shape((description.max_positions, rope.rotary_size), jnp.float32) for rope in description.ropes]
    parameters = Parameters(head.weight, None, tuple(map(layer, description.layers)), norm, head, tuple(tables))
    pools = tuple(map(partial(_pool_shapes, num_blocks=num_blocks), description.cache_groups))
    return StepShapes(description, False, parameters, pools, input_shapes(description, bucket))


def _pool_shapes(spec: KVSpec, num_blocks: int) -> Layers:
    widths = (spec.num_kv_heads * size for size in (spec.head_size, spec.value_head_size))
    keys, values = (array_shape((num_blocks, spec.block_size, width), jnp.dtype(spec.dtype)) for width in widths)
    return tuple(LayerCache(keys, values) for _ in range(spec.num_layers))
