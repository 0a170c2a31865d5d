"""Norms of a decoder, bound to their ops and weights."""

from abc import ABC, abstractmethod

from torch import Tensor

from pageport.backend.decoder_weights import NormWeights
from pageport.backend.op_table import OpTable
from pageport.models.spec import NormSpec


class Norm(ABC):
    """A norm that writes where it is told to."""

    @abstractmethod
    def __call__(self, x: Tensor, out: Tensor) -> None:
        """Write the norm of ``x`` to ``out``."""

    @abstractmethod
    def join(self, x: Tensor, residual: Tensor, out: Tensor) -> None:
        """Add ``x`` to ``residual`` in place and write the norm of the sum to ``out``."""


class RMSNorm(Norm):
    """``x / rms(x) * weight``; joining is one op."""

    def __init__(self, spec: NormSpec, weights: NormWeights, ops: OpTable) -> None:
        self._weight = weights.weight
        self._epsilon = spec.epsilon
        self._rms_norm = ops.rms_norm
        self._add_rms_norm = ops.add_rms_norm

    def __call__(self, x: Tensor, out: Tensor) -> None:
        self._rms_norm(x, self._weight, self._epsilon, out)

    def join(self, x: Tensor, residual: Tensor, out: Tensor) -> None:
        self._add_rms_norm(x, residual, self._weight, self._epsilon, out)


class LayerNorm(Norm):
    """``(x - mean) / deviation * weight + bias``."""

    def __init__(self, spec: NormSpec, weights: NormWeights, ops: OpTable) -> None:
        self._weight = weights.weight
        self._bias = weights.bias
        self._epsilon = spec.epsilon
        self._layer_norm = ops.layer_norm
        self._add = ops.add

    def __call__(self, x: Tensor, out: Tensor) -> None:
        self._layer_norm(x, self._weight, self._bias, self._epsilon, out)

    def join(self, x: Tensor, residual: Tensor, out: Tensor) -> None:
        self._add(residual, x, residual)
        self._layer_norm(residual, self._weight, self._bias, self._epsilon, out)


def make_norm(spec: NormSpec, weights: NormWeights, ops: OpTable) -> Norm:
    """Bind a norm of either kind."""
    return (RMSNorm if spec.kind == "rms" else LayerNorm)(spec, weights, ops)
