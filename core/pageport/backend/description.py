"""``DecoderDescription``: what a decoder computes, for devices that compile whole models. Frozen dataclasses, no torch.

It says nothing of files: which stored tensor becomes which weight is core's business, and the weights come beside it
in ``DecoderWeights``, whose fields have the names of these. Equal descriptions are equal programs, so that a compiled
one can be kept under a hash of it.
"""

from dataclasses import dataclass
from typing import Literal

from pageport.backend.kv import AttentionParams, KVSpec

Activation = Literal["silu", "gelu", "gelu_tanh"]


@dataclass(frozen=True, kw_only=True)
class NormDescription:
    """RMS norm (arXiv:1910.07467) or layer norm (arXiv:1607.06450)."""

    kind: Literal["rms", "layer"]
    epsilon: float


@dataclass(frozen=True, kw_only=True)
class RopeDescription:
    """Rotary embedding of the first ``rotary_size`` features of a head, as ``Device.rope`` has it."""

    rotary_size: int
    interleaved: bool = False


@dataclass(frozen=True, kw_only=True)
class AttentionDescription:
    """One layer's attention.

    ``qkv`` gives query rows, then key rows, then value rows. Its keys and values live in layer ``cache_layer`` of
    the pool of cache group ``cache_group``.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    params: AttentionParams
    cache_group: int
    cache_layer: int
    rope: int | None = None  # index into DecoderDescription.ropes and DecoderWeights.rope_tables
    q_norm: NormDescription | None = None  # over each head's features, before rope
    k_norm: NormDescription | None = None


@dataclass(frozen=True, kw_only=True)
class MLPDescription:
    """``down(act(up(x)))``, or ``down(act(gate(x)) * up(x))`` when ``gated``: ``up`` then gives the gate first."""

    features: int  # that ``down`` takes
    activation: Activation
    gated: bool


@dataclass(frozen=True, kw_only=True)
class LayerDescription:
    """One decoder layer.

    ``sequential``: x += out_norm(attention(norm(x))), then x += out_norm(mlp(norm(x))).
    ``parallel``: x += attention(norm(x)) + mlp(mlp_norm(x)).
    """

    attention_norm: NormDescription
    attention: AttentionDescription
    mlp_norm: NormDescription
    mlp: MLPDescription
    attention_output_norm: NormDescription | None = None
    mlp_output_norm: NormDescription | None = None
    residual: Literal["sequential", "parallel"] = "sequential"


@dataclass(frozen=True, kw_only=True)
class DecoderDescription:
    """A whole decoder: embedding, layers, final norm, output head.

    ``version`` is the lowest version of the feature ``whole_model`` that has everything this decoder needs; core
    refuses to hand it to a device that declares a lower one, so that nothing is left out silently.
    """

    version: int = 1
    vocab_size: int  # logits that are real tokens; the head may have more rows
    hidden_size: int
    compute_dtype: str  # as in torch, without the prefix
    max_positions: int  # of a served sequence
    cache_groups: tuple[KVSpec, ...]
    layers: tuple[LayerDescription, ...]
    final_norm: NormDescription
    ropes: tuple[RopeDescription, ...] = ()
    has_position_embedding: bool = False  # learned absolute positions, added to the embedding
    embedding_scale: float | None = None  # what embeddings are multiplied by
    logit_softcap: float | None = None  # cap * tanh(logit / cap)
