"""``describe_decoder``: what a ``DecoderSpec`` computes, as devices that compile whole models are told it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pageport.backend.description import (
    AttentionDescription,
    DecoderDescription,
    LayerDescription,
    MLPDescription,
    NormDescription,
    RopeDescription,
)
from pageport.backend.kv import KVSpec
from pageport.models.layer import attention_params
from pageport.models.rope import rope_table
from pageport.models.spec import AttentionSpec, DecoderSpec, LayerSpec, NormSpec, cache_groups


def describe_decoder(
    spec: DecoderSpec, kv_specs: Sequence[KVSpec], *, compute_dtype: str, max_model_len: int
) -> DecoderDescription:
    """Describe a decoder.

    Args:
        kv_specs: one for each of ``cache_groups(spec)``.
        compute_dtype: as in torch ("float32", "bfloat16", "float16").
        max_model_len: longest sequence that will be served.
    """
    homes = {
        layer: (group_index, cache_layer)
        for group_index, group in enumerate(cache_groups(spec))
        for cache_layer, layer in enumerate(group.layers)
    }
    scale = spec.embedding_scale
    return DecoderDescription(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        compute_dtype=compute_dtype,
        max_positions=max_model_len,
        cache_groups=tuple(kv_specs),
        layers=tuple(_layer(layer, *homes[index]) for index, layer in enumerate(spec.layers)),
        final_norm=_norm(spec.final_norm),
        ropes=tuple(RopeDescription(rotary_size=rope.rotary_size, interleaved=rope.interleaved) for rope in spec.ropes),
        has_position_embedding=spec.position_embedding is not None,
        # As the dtype can express it.
        embedding_scale=None if scale is None else torch.tensor(scale, dtype=getattr(torch, compute_dtype)).item(),
        logit_softcap=spec.logit_softcap,
    )


def rope_tables(spec: DecoderSpec, max_model_len: int, device: torch.device) -> tuple[Tensor, ...]:
    """Return the table of each of ``spec.ropes``."""
    return tuple(rope_table(rope, max_model_len).to(device) for rope in spec.ropes)


def _layer(layer: LayerSpec, cache_group: int, cache_layer: int) -> LayerDescription:
    return LayerDescription(
        attention_norm=_norm(layer.attention_norm),
        attention=_attention(layer.attention, cache_group, cache_layer),
        mlp_norm=_norm(layer.mlp_norm),
        mlp=MLPDescription(features=layer.mlp.down.in_features, activation=layer.mlp.activation, gated=layer.mlp.gated),
        attention_output_norm=_optional_norm(layer.attention_output_norm),
        mlp_output_norm=_optional_norm(layer.mlp_output_norm),
        residual=layer.residual,
    )


def _attention(attention: AttentionSpec, cache_group: int, cache_layer: int) -> AttentionDescription:
    return AttentionDescription(
        num_heads=attention.num_heads,
        num_kv_heads=attention.num_kv_heads,
        head_size=attention.head_size,
        params=attention_params(attention),
        cache_group=cache_group,
        cache_layer=cache_layer,
        rope=attention.rope,
        q_norm=_optional_norm(attention.q_norm),
        k_norm=_optional_norm(attention.k_norm),
    )


def _norm(norm: NormSpec) -> NormDescription:
    return NormDescription(kind=norm.kind, epsilon=norm.epsilon)


def _optional_norm(norm: NormSpec | None) -> NormDescription | None:
    return None if norm is None else _norm(norm)
