"""``DecoderWeights``: a model's weights in the device's form, named like the fields of ``DecoderDescription``."""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Projection:
    """A matrix in the device's own form (what ``prepare_weight`` returned) and its bias in the compute dtype."""

    weight: Any
    bias: Float[Tensor, "out_features"] | None = None


@dataclass(frozen=True, kw_only=True)
class NormWeights:
    """What a norm multiplies by and adds, in float32; an offset of one is already in."""

    weight: Float[Tensor, "features"]
    bias: Float[Tensor, "features"] | None = None


@dataclass(frozen=True, kw_only=True)
class LayerWeights:
    """One layer's weights."""

    attention_norm: NormWeights
    qkv: Projection
    output: Projection
    mlp_norm: NormWeights
    up: Projection
    down: Projection
    attention_output_norm: NormWeights | None = None
    mlp_output_norm: NormWeights | None = None
    q_norm: NormWeights | None = None
    k_norm: NormWeights | None = None


@dataclass(frozen=True, kw_only=True)
class DecoderWeights:
    """A whole model's weights; a tied head is the embedding's own handle.

    ``rope_tables``: one a ``RopeDescription``, float32 cosines, then sines, as ``Device.rope`` takes them; empty where
    nothing was said of how long a sequence may become.
    """

    embedding: Any
    position_embedding: Any | None
    layers: tuple[LayerWeights, ...]
    final_norm: NormWeights
    lm_head: Projection
    rope_tables: tuple[Float[Tensor, "positions rotary_size"], ...] = ()
