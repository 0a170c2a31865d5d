"""``Parameters``: a decoder's weights as a tree of JAX arrays, named like the fields of ``DecoderWeights``."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import Array
from torch import Tensor

from pageport.backend.decoder_weights import DecoderWeights, LayerWeights, NormWeights
from pageport.backend.decoder_weights import Projection as StoredProjection
from pageport_tpu.arrays import shared_array


class Norm(NamedTuple):
    weight: Array  # float32 [features]
    bias: Array | None


class Projection(NamedTuple):
    weight: Array  # [out_features, in_features]
    bias: Array | None


class LayerParameters(NamedTuple):
    attention_norm: Norm
    qkv: Projection
    output: Projection
    mlp_norm: Norm
    up: Projection
    down: Projection
    attention_output_norm: Norm | None
    mlp_output_norm: Norm | None
    q_norm: Norm | None
    k_norm: Norm | None


class Parameters(NamedTuple):
    embedding: Array
    position_embedding: Array | None
    layers: tuple[LayerParameters, ...]
    final_norm: Norm
    lm_head: Projection
    rope_tables: tuple[Array, ...]


def parameters_of(weights: DecoderWeights, device: jax.Device) -> Parameters:
    """Hand the weights to a JAX device; a matrix that is used twice is handed over once."""
    return _Transfer(device).decoder(weights)


class _Transfer:
    def __init__(self, device: jax.Device) -> None:
        self._device = device
        self._arrays: dict[int, Array] = {}  # by the identity of the tensor, which outlives the transfer

    def decoder(self, weights: DecoderWeights) -> Parameters:
        positions = weights.position_embedding
        return Parameters(
            embedding=self._array(weights.embedding.dense),
            position_embedding=None if positions is None else self._array(positions.dense),
            layers=tuple(map(self._layer, weights.layers)),
            final_norm=self._norm(weights.final_norm),
            lm_head=self._projection(weights.lm_head),
            rope_tables=tuple(map(self._array, weights.rope_tables)),
        )

    def _layer(self, layer: LayerWeights) -> LayerParameters:
        kinds: dict[str, Callable[[Any], Any]] = {
            name: self._projection if name in ("qkv", "output", "up", "down") else self._norm
            for name in LayerParameters._fields
        }
        stored = {name: getattr(layer, name) for name in kinds}
        return LayerParameters(**{name: None if s is None else kinds[name](s) for name, s in stored.items()})

    def _projection(self, stored: StoredProjection) -> Projection:
        bias = None if stored.bias is None else self._array(stored.bias)
        return Projection(self._array(stored.weight.dense), bias)

    def _norm(self, stored: NormWeights) -> Norm:
        return Norm(self._array(stored.weight), None if stored.bias is None else self._array(stored.bias))

    def _array(self, tensor: Tensor) -> Array:
        if id(tensor) not in self._arrays:
            self._arrays[id(tensor)] = shared_array(tensor, self._device)
        return self._arrays[id(tensor)]
