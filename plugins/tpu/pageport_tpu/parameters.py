"""``Parameters``: a decoder's weights as a tree of JAX arrays, named like the fields of ``DecoderWeights``."""

from typing import NamedTuple

from jax import Array
from torch import Tensor

from pageport.backend.decoder_weights import DecoderWeights, LayerWeights, NormWeights
from pageport.backend.decoder_weights import Projection as StoredProjection
from pageport_tpu.arrays import JaxDevice, shared_array


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


def parameters_of(weights: DecoderWeights, device: JaxDevice) -> Parameters:
    """Hand the weights to a JAX device; a matrix that is used twice is handed over once."""
    return _Transfer(device).decoder(weights)


class _Transfer:
    def __init__(self, device: JaxDevice) -> None:
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
        return LayerParameters(
            attention_norm=self._norm(layer.attention_norm),
            qkv=self._projection(layer.qkv),
            output=self._projection(layer.output),
            mlp_norm=self._norm(layer.mlp_norm),
            up=self._projection(layer.up),
            down=self._projection(layer.down),
            attention_output_norm=self._optional_norm(layer.attention_output_norm),
            mlp_output_norm=self._optional_norm(layer.mlp_output_norm),
            q_norm=self._optional_norm(layer.q_norm),
            k_norm=self._optional_norm(layer.k_norm),
        )

    def _projection(self, stored: StoredProjection) -> Projection:
        bias = None if stored.bias is None else self._array(stored.bias)
        return Projection(self._array(stored.weight.dense), bias)

    def _norm(self, stored: NormWeights) -> Norm:
        return Norm(self._array(stored.weight), None if stored.bias is None else self._array(stored.bias))

    def _optional_norm(self, stored: NormWeights | None) -> Norm | None:
        return None if stored is None else self._norm(stored)

    def _array(self, tensor: Tensor) -> Array:
        if id(tensor) not in self._arrays:
            self._arrays[id(tensor)] = shared_array(tensor, self._device)
        return self._arrays[id(tensor)]
