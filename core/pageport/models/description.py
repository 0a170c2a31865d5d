"""``describe_decoder``: what a ``DecoderSpec`` computes, as devices that compile whole models are told it."""

from collections.abc import Sequence

import torch

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
from pageport.models.spec import AttentionSpec, CacheHome, DecoderSpec, LayerSpec, NormSpec, cache_homes


def describe_decoder(
    spec: DecoderSpec, kv_specs: Sequence[KVSpec], *, compute_dtype: str, max_model_len: int
) -> DecoderDescription:
    """Describe a decoder.

    Args:
        kv_specs: one for each of ``cache_groups(spec)``.
        compute_dtype: as in torch ("float32", "bfloat16", "float16").
        max_model_len: longest sequence that will be served.
    """
    homes = cache_homes(spec)
    dtype: torch.dtype = getattr(torch, compute_dtype)
    return DecoderDescription(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        compute_dtype=compute_dtype,
        max_positions=max_model_len,
        cache_groups=tuple(kv_specs),
        layers=tuple(_layer(layer, homes[index]) for index, layer in enumerate(spec.layers)),
        final_norm=_norm(spec.final_norm),
        ropes=tuple(RopeDescription(rotary_size=rope.rotary_size, interleaved=rope.interleaved) for rope in spec.ropes),
        has_position_embedding=spec.position_embedding is not None,
        embedding_scale=rounded_embedding_scale(spec, dtype),
        logit_softcap=spec.logit_softcap,
    )


def rounded_embedding_scale(spec: DecoderSpec, dtype: torch.dtype) -> float | None:
    """Return what embeddings are multiplied by, as the dtype can express it: Gemma does so."""
    return None if spec.embedding_scale is None else torch.tensor(spec.embedding_scale, dtype=dtype).item()


def _layer(layer: LayerSpec, home: CacheHome) -> LayerDescription:
    return LayerDescription(
        attention_norm=_norm(layer.attention_norm),
        attention=_attention(layer.attention, home),
        mlp_norm=_norm(layer.mlp_norm),
        mlp=MLPDescription(features=layer.mlp.down.in_features, activation=layer.mlp.activation, gated=layer.mlp.gated),
        attention_output_norm=_optional_norm(layer.attention_output_norm),
        mlp_output_norm=_optional_norm(layer.mlp_output_norm),
        residual=layer.residual,
    )


def _attention(attention: AttentionSpec, home: CacheHome) -> AttentionDescription:
    return AttentionDescription(
        num_heads=attention.num_heads,
        num_kv_heads=attention.num_kv_heads,
        head_size=attention.head_size,
        params=attention_params(attention),
        cache_group=home.group,
        cache_layer=home.layer,
        rope=attention.rope,
        q_norm=_optional_norm(attention.q_norm),
        k_norm=_optional_norm(attention.k_norm),
    )


def _norm(norm: NormSpec) -> NormDescription:
    return NormDescription(kind=norm.kind, epsilon=norm.epsilon)


def _optional_norm(norm: NormSpec | None) -> NormDescription | None:
    return None if norm is None else _norm(norm)
