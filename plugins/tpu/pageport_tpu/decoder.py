"""``decode_step``: one step of a decoder as a pure function of arrays, whose shapes its bucket fixes."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from pageport.backend import (
    AttentionDescription,
    DecoderDescription,
    LayerDescription,
    MLPDescription,
    NormDescription,
)
from pageport_tpu.attention import Formula, Sequences, paged_attention
from pageport_tpu.kv import Layers, write_slots
from pageport_tpu.parameters import LayerParameters, Norm, Parameters, Projection


class StepInputs(NamedTuple):
    """The numbers of a ``ProgramStep``, int32."""

    token_ids: Array  # [tokens]
    positions: Array  # [tokens]
    seq_lens: Array  # [requests]
    last_tokens: Array  # [requests]
    block_tables: tuple[Array, ...]  # [requests, blocks], one a cache group
    slot_mappings: tuple[Array, ...]  # [tokens]


class StepOutputs(NamedTuple):
    hidden: Array  # [tokens, hidden]
    logits: Array  # [requests, vocab]


def decode_step(
    description: DecoderDescription,
    interpret: bool,
    parameters: Parameters,
    pools: tuple[Layers, ...],
    inputs: StepInputs,
) -> tuple[StepOutputs, tuple[Layers, ...]]:
    """Compute a step; return what it gives and the pools with its keys and values.

    Args:
        interpret: run the attention kernel in JAX's interpreter, where there is no TPU.
    """
    step = _Step(description, interpret, parameters, pools, inputs)
    return step.run(), tuple(map(tuple, step.pools))


class _Step:
    def __init__(
        self,
        description: DecoderDescription,
        interpret: bool,
        parameters: Parameters,
        pools: tuple[Layers, ...],
        inputs: StepInputs,
    ) -> None:
        self._description = description
        self._interpret = interpret
        self._parameters = parameters
        self._inputs = inputs
        self._dtype = jnp.dtype(description.compute_dtype)
        self.pools = [list(layers) for layers in pools]

    def run(self) -> StepOutputs:
        description, parameters, inputs = self._description, self._parameters, self._inputs
        x = jnp.take(parameters.embedding, inputs.token_ids, axis=0, mode="clip")
        if description.embedding_scale is not None:
            x = (x.astype(jnp.float32) * description.embedding_scale).astype(self._dtype)
        if parameters.position_embedding is not None:
            x = x + jnp.take(parameters.position_embedding, inputs.positions, axis=0, mode="clip")
        for layer, layer_parameters in zip(description.layers, parameters.layers, strict=True):
            x = self._layer(layer, layer_parameters, x)
        hidden = normed(x, description.final_norm, parameters.final_norm)
        last = jnp.take(hidden, inputs.last_tokens, axis=0, mode="clip")
        logits = projected(last, parameters.lm_head)[:, : description.vocab_size]
        cap = description.logit_softcap
        if cap is not None:
            logits = (cap * jnp.tanh(logits.astype(jnp.float32) / cap)).astype(self._dtype)
        return StepOutputs(hidden, logits)

    def _layer(self, layer: LayerDescription, parameters: LayerParameters, x: Array) -> Array:
        attended = self._attend(layer.attention, parameters, normed(x, layer.attention_norm, parameters.attention_norm))
        attended = _normed_if_any(attended, layer.attention_output_norm, parameters.attention_output_norm)
        before_mlp = x if layer.residual == "parallel" else x + attended
        fed = _fed_forward(layer.mlp, parameters, normed(before_mlp, layer.mlp_norm, parameters.mlp_norm))
        return x + attended + _normed_if_any(fed, layer.mlp_output_norm, parameters.mlp_output_norm)

    def _attend(self, attention: AttentionDescription, parameters: LayerParameters, x: Array) -> Array:
        inputs, group = self._inputs, attention.cache_group
        heads, kv_heads, size = attention.num_heads, attention.num_kv_heads, attention.head_size
        qkv = projected(x, parameters.qkv).reshape(len(x), heads + 2 * kv_heads, size)
        query, key, value = jnp.split(qkv, (heads, heads + kv_heads), axis=1)
        query = _normed_if_any(query, attention.q_norm, parameters.q_norm)
        key = _normed_if_any(key, attention.k_norm, parameters.k_norm)
        if attention.rope is not None:
            angles = jnp.take(self._parameters.rope_tables[attention.rope], inputs.positions, axis=0, mode="clip")
            interleaved = self._description.ropes[attention.rope].interleaved
            query, key = rotated(query, angles, interleaved), rotated(key, angles, interleaved)
        layer = write_slots(self.pools[group][attention.cache_layer], key, value, inputs.slot_mappings[group])
        self.pools[group][attention.cache_layer] = layer
        requests = len(inputs.seq_lens)
        params = attention.params
        attended = paged_attention(
            query.reshape(requests, -1, heads, size),
            layer.keys,
            layer.values,
            Sequences(inputs.positions.reshape(requests, -1)[:, 0], inputs.seq_lens, inputs.block_tables[group]),
            Formula(params.scale, params.sliding_window, params.softcap),
            self._interpret,
        )
        return projected(attended.reshape(len(x), -1), parameters.output)


def projected(x: Array, projection: Projection) -> Array:
    """Return ``x · Wᵀ + bias``, summed in float32."""
    # Left alone, a TPU rounds the factors of a float32 product to bfloat16.
    exact = lax.Precision.HIGHEST if x.dtype == jnp.float32 else lax.Precision.DEFAULT
    dimensions = (((1,), (1,)), ((), ()))
    product = lax.dot_general(x, projection.weight, dimensions, precision=exact, preferred_element_type=jnp.float32)
    if projection.bias is not None:
        product = product + projection.bias.astype(jnp.float32)
    return product.astype(x.dtype)


def normed(x: Array, norm: NormDescription, parameters: Norm) -> Array:
    """Return the RMS or layer norm along the last axis, computed in float32."""
    values = x.astype(jnp.float32)
    if norm.kind == "layer":
        values = values - jnp.mean(values, axis=-1, keepdims=True)
    values = values * lax.rsqrt(jnp.mean(values * values, axis=-1, keepdims=True) + norm.epsilon) * parameters.weight
    return (values if parameters.bias is None else values + parameters.bias).astype(x.dtype)


def rotated(heads: Array, angles: Array, interleaved: bool) -> Array:
    """Rotate the first features of each head by ``angles``: cosines, then sines [tokens, rotary_size]."""
    rotary = angles.shape[1]
    cosines, sines = jnp.split(angles[:, None], 2, axis=-1)
    turned = heads[..., :rotary].astype(jnp.float32)
    pairs = (turned[..., 0::2], turned[..., 1::2]) if interleaved else jnp.split(turned, 2, axis=-1)
    first, second = pairs
    both = first * cosines - second * sines, second * cosines + first * sines
    turned = jnp.stack(both, axis=-1).reshape(turned.shape) if interleaved else jnp.concatenate(both, axis=-1)
    return jnp.concatenate((turned.astype(heads.dtype), heads[..., rotary:]), axis=-1)


def _normed_if_any(x: Array, norm: NormDescription | None, parameters: Norm | None) -> Array:
    return x if norm is None or parameters is None else normed(x, norm, parameters)


def _fed_forward(mlp: MLPDescription, parameters: LayerParameters, x: Array) -> Array:
    up = projected(x, parameters.up)
    gate, rest = jnp.split(up, 2, axis=-1) if mlp.gated else (up, None)
    activated = _activated(gate.astype(jnp.float32), mlp)
    if rest is not None:
        activated = activated * rest.astype(jnp.float32)
    return projected(activated.astype(x.dtype), parameters.down)


def _activated(x: Array, mlp: MLPDescription) -> Array:
    if mlp.activation == "silu":
        return jax.nn.silu(x)
    return jax.nn.gelu(x, approximate=mlp.activation == "gelu_tanh")
