"""Load a model's ``DecoderWeights`` in the device's form, one matrix at a time."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from pageport.backend.decoder_weights import DecoderWeights, LayerWeights, NormWeights, Projection
from pageport.backend.device import Device
from pageport.backend.weights import WeightSpec
from pageport.config import Quantisation
from pageport.errors import CorruptWeights
from pageport.models.checkpoint import Checkpoint
from pageport.models.spec import BiasPart, DecoderSpec, LayerSpec, MatrixPart, NormSpec, ProjectionSpec

# Called with the matrices loaded so far and how many there are.
Progress = Callable[[int, int], None]


def load_decoder_weights(
    spec: DecoderSpec,
    checkpoint: Checkpoint,
    device: Device,
    dtype: str,
    *,
    dequantise: bool = False,
    quantisation: Quantisation | None = None,
    progress: Progress | None = None,
) -> DecoderWeights:
    """Load every weight ``spec`` names onto ``device``.

    The peak is the model plus one matrix: stored parts are mapped when a matrix is made and dropped right after.

    Args:
        dtype: the compute dtype, named as in torch ("float32", "bfloat16", "float16").
        dequantise: also what the device could keep in its stored format.
        quantisation: what the device turns matrices into. An embedding and a head, tied or not, are int8 whatever it
            says: they are what 4 bits hurt most. Norms, biases and learned positions stay as they are.

    Raises:
        CorruptWeights: a tensor is missing, misshapen, or stored but unknown; the message names tensors and file.
    """
    check_names(spec, checkpoint)
    return _Loading(spec, checkpoint, device, dtype, dequantise, quantisation, progress).run()


def check_names(spec: DecoderSpec, checkpoint: Checkpoint) -> None:
    """Account for every tensor, both ways.

    Raises:
        CorruptWeights: one that the model needs is not stored, or a stored one has no place in the model.
    """
    needed = frozenset(tensor_names(spec))
    stored = checkpoint.names()
    ignored = [re.compile(pattern) for pattern in spec.ignored_tensors]
    missing = sorted(needed - stored)
    extra = sorted(name for name in stored - needed if not any(pattern.fullmatch(name) for pattern in ignored))
    if missing:
        raise CorruptWeights(
            f"{checkpoint.path}: {spec.architecture} needs {_listed(missing)} that the weights do not hold. "
            "The download may be incomplete, or config.json belongs to another model."
        )
    if extra:
        raise CorruptWeights(
            f"{checkpoint.path}: the weights hold {_listed(extra)} that {spec.architecture} has no place for. "
            "config.json may belong to another model, or leave out something this one needs."
        )


def tensor_names(spec: DecoderSpec) -> Iterator[str]:
    """Yield the name of every stored tensor the model is made of."""
    yield spec.embedding.name
    if spec.position_embedding is not None:
        yield spec.position_embedding.name
    for layer in spec.layers:
        for projection in (layer.attention.qkv, layer.attention.output, layer.mlp.up, layer.mlp.down):
            yield from _projection_names(projection)
        for norm in _norms(layer):
            yield from _norm_names(norm)
    yield from _norm_names(spec.final_norm)
    if spec.lm_head is not None:
        yield from _projection_names(spec.lm_head)


class _Loading:
    """One run of loading: what stays the same from matrix to matrix."""

    def __init__(
        self,
        spec: DecoderSpec,
        checkpoint: Checkpoint,
        device: Device,
        dtype: str,
        dequantise: bool,
        quantisation: Quantisation | None,
        progress: Progress | None,
    ) -> None:
        self._spec = spec
        self._checkpoint = checkpoint
        self._device = device
        self._dtype = dtype
        self._dequantise = dequantise
        self._quantisation: Quantisation | None = quantisation
        self._vocabulary_quantisation: Quantisation | None = None if quantisation is None else "int8"
        self._progress = progress
        self._num_loaded = 0
        self._num_matrices = (
            1 + 4 * len(spec.layers) + (spec.position_embedding is not None) + (spec.lm_head is not None)
        )

    def run(self) -> DecoderWeights:
        spec = self._spec
        vocabulary = self._vocabulary_quantisation
        embedding = self._matrix((spec.embedding,), spec.hidden_size, vocabulary)
        position_embedding = (
            None
            if spec.position_embedding is None
            else self._matrix((spec.position_embedding,), spec.hidden_size, None)
        )
        return DecoderWeights(
            embedding=embedding,
            position_embedding=position_embedding,
            layers=tuple(self._layer(layer) for layer in spec.layers),
            final_norm=self._norm(spec.final_norm),
            lm_head=(
                Projection(weight=embedding) if spec.lm_head is None else self._projection(spec.lm_head, vocabulary)
            ),
        )

    def _layer(self, layer: LayerSpec) -> LayerWeights:
        return LayerWeights(
            attention_norm=self._norm(layer.attention_norm),
            qkv=self._projection(layer.attention.qkv, self._quantisation),
            output=self._projection(layer.attention.output, self._quantisation),
            mlp_norm=self._norm(layer.mlp_norm),
            up=self._projection(layer.mlp.up, self._quantisation),
            down=self._projection(layer.mlp.down, self._quantisation),
            attention_output_norm=self._optional_norm(layer.attention_output_norm),
            mlp_output_norm=self._optional_norm(layer.mlp_output_norm),
            q_norm=self._optional_norm(layer.attention.q_norm),
            k_norm=self._optional_norm(layer.attention.k_norm),
        )

    def _projection(self, projection: ProjectionSpec, quantisation: Quantisation | None) -> Projection:
        weight = self._matrix(projection.parts, projection.in_features, quantisation)
        if not projection.biases:
            return Projection(weight=weight)
        bias = torch.cat([self._checkpoint.vector(part) for part in projection.biases])
        return Projection(
            weight=weight, bias=bias.to(device=self._device.torch_device, dtype=getattr(torch, self._dtype))
        )

    def _matrix(self, parts: tuple[MatrixPart, ...], in_features: int, quantisation: Quantisation | None) -> Any:
        weight_spec = WeightSpec(
            name=" + ".join(part.name for part in parts),
            out_features=sum(part.rows for part in parts),
            in_features=in_features,
            compute_dtype=self._dtype,
            dequantise=self._dequantise,
            quantisation=quantisation,
        )
        weight = self._device.prepare_weight(
            weight_spec, [self._checkpoint.matrix(part, in_features) for part in parts]
        )
        self._num_loaded += 1
        if self._progress is not None:
            self._progress(self._num_loaded, self._num_matrices)
        return weight

    def _norm(self, norm: NormSpec) -> NormWeights:
        weight = self._vector(norm.weight, norm.features)
        return NormWeights(
            weight=1.0 + weight if norm.unit_offset else weight,
            bias=None if norm.bias is None else self._vector(norm.bias, norm.features),
        )

    def _optional_norm(self, norm: NormSpec | None) -> NormWeights | None:
        return None if norm is None else self._norm(norm)

    def _vector(self, name: str, features: int) -> Tensor:
        vector = self._checkpoint.vector(BiasPart(name=name, rows=features))
        return vector.to(device=self._device.torch_device, dtype=torch.float32)


def _norms(layer: LayerSpec) -> Iterator[NormSpec]:
    attention = layer.attention
    for norm in (
        layer.attention_norm,
        attention.q_norm,
        attention.k_norm,
        layer.attention_output_norm,
        layer.mlp_norm,
        layer.mlp_output_norm,
    ):
        if norm is not None:
            yield norm


def _norm_names(norm: NormSpec) -> Iterator[str]:
    yield norm.weight
    if norm.bias is not None:
        yield norm.bias


def _projection_names(projection: ProjectionSpec) -> Iterator[str]:
    yield from (part.name for part in projection.parts)
    yield from (bias.name for bias in projection.biases)


def _listed(names: list[str], shown: int = 8) -> str:
    listed = ", ".join(names[:shown])
    return f"{listed} and {len(names) - shown} more tensors" if len(names) > shown else listed
