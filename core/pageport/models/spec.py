"""``DecoderSpec``: an architecture as data. Frozen dataclasses, no torch.

An architecture file maps a Hugging Face config and weight names to these; ``models/decoder.py`` runs any of them, and
devices that compile whole graphs receive the same description.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from pageport.backend.kv import KVSpec

Activation = Literal["silu", "gelu", "gelu_tanh"]


@dataclass(frozen=True, kw_only=True)
class RowOrder:
    """Reorder a stored matrix's rows: view them as ``shape``, transpose by ``axes``, flatten.

    A row operation, so valid on quantised rows. GPT-NeoX's interleaved qkv is shape (heads, 3, head_size), axes
    (1, 0, 2).
    """

    shape: tuple[int, ...]
    axes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class MatrixPart:
    """One stored matrix of ``rows`` output features.

    ``transposed``: stored as [in_features, out_features] (GPT-2's Conv1D).
    """

    name: str
    rows: int
    transposed: bool = False
    row_order: RowOrder | None = None


@dataclass(frozen=True, kw_only=True)
class BiasPart:
    """One stored bias of ``rows`` values, reordered like its matrix."""

    name: str
    rows: int
    row_order: RowOrder | None = None


@dataclass(frozen=True, kw_only=True)
class ProjectionSpec:
    """``y = W·x + b`` with W (and b) concatenated by rows from ``parts``."""

    parts: tuple[MatrixPart, ...]
    in_features: int
    biases: tuple[BiasPart, ...] = ()

    @property
    def out_features(self) -> int:
        return sum(part.rows for part in self.parts)


@dataclass(frozen=True, kw_only=True)
class NormSpec:
    """RMS or layer norm. ``unit_offset``: the stored weight is w and the norm multiplies by 1 + w (Gemma)."""

    kind: Literal["rms", "layer"]
    weight: str
    features: int
    epsilon: float
    bias: str | None = None
    unit_offset: bool = False


@dataclass(frozen=True, kw_only=True)
class RopeSpec:
    """Rotary embedding of the first ``rotary_size`` features of a head.

    ``scaling`` is the config's own ``rope_scaling`` / ``rope_parameters`` mapping, checked and with ``rope_type``
    filled in ("default", "linear", "dynamic", "llama3", "yarn", "longrope"); ``models/rope.py`` turns it into tables.
    """

    rotary_size: int
    base: float
    interleaved: bool = False
    max_positions: int = 0  # what the model was trained with; dynamic, yarn and longrope need it
    scaling: Mapping[str, object] = field(default_factory=lambda: {"rope_type": "default"})


@dataclass(frozen=True, kw_only=True)
class AttentionSpec:
    """Projections and parameters of one layer's attention. ``qkv`` holds query rows, then key rows, then value rows."""

    num_heads: int
    num_kv_heads: int
    head_size: int
    qkv: ProjectionSpec
    output: ProjectionSpec
    scale: float
    rope: int | None = None  # index into DecoderSpec.ropes
    sliding_window: int | None = None
    softcap: float | None = None
    q_norm: NormSpec | None = None  # over each head's features, before rope
    k_norm: NormSpec | None = None


@dataclass(frozen=True, kw_only=True)
class MLPSpec:
    """``down(act(up(x)))``, or ``down(act(gate(x)) * up(x))`` when ``gated``: ``up`` then holds gate rows first."""

    up: ProjectionSpec
    down: ProjectionSpec
    activation: Activation
    gated: bool


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """One decoder layer.

    ``sequential``: x += out_norm(attention(norm(x))), then x += out_norm(mlp(norm(x))).
    ``parallel``: x += attention(norm(x)) + mlp(mlp_norm(x)) (GPT-NeoX).
    """

    attention_norm: NormSpec
    attention: AttentionSpec
    mlp_norm: NormSpec
    mlp: MLPSpec
    attention_output_norm: NormSpec | None = None
    mlp_output_norm: NormSpec | None = None
    residual: Literal["sequential", "parallel"] = "sequential"


@dataclass(frozen=True, kw_only=True)
class DecoderSpec:
    """A whole decoder-only model."""

    architecture: str
    vocab_size: int  # rows of the output head that are real tokens
    hidden_size: int
    max_positions: int
    embedding: MatrixPart  # rows = vocabulary rows stored
    layers: tuple[LayerSpec, ...]
    final_norm: NormSpec
    lm_head: ProjectionSpec | None  # None: tied to the embedding
    ropes: tuple[RopeSpec, ...] = ()
    position_embedding: MatrixPart | None = None  # learned absolute positions
    embedding_scale: float | None = None  # rounded to the compute dtype, as Gemma does
    logit_softcap: float | None = None
    # Regular expressions of stored tensors that may be left unread; any other unread tensor is an error.
    ignored_tensors: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CacheGroup:
    """Layers that share one pool and one block table: all full attention, or all with the same window."""

    layers: tuple[int, ...]
    num_kv_heads: int
    head_size: int
    sliding_window: int | None

    def kv_spec(self, block_size: int, dtype: str) -> KVSpec:
        """Describe the pool to a device; ``block_size`` in tokens."""
        return KVSpec(
            num_layers=len(self.layers),
            num_kv_heads=self.num_kv_heads,
            head_size=self.head_size,
            value_head_size=self.head_size,
            block_size=block_size,
            dtype=dtype,
            kind="full" if self.sliding_window is None else "sliding",
        )


def cache_groups(spec: DecoderSpec) -> tuple[CacheGroup, ...]:
    """Group the layers by what their cache needs: full attention first, then one group per window."""
    members: dict[tuple[int, int, int], list[int]] = {}
    for index, layer in enumerate(spec.layers):
        attention = layer.attention
        key = (attention.sliding_window or 0, attention.num_kv_heads, attention.head_size)
        members.setdefault(key, []).append(index)
    return tuple(
        CacheGroup(layers=tuple(layers), num_kv_heads=kv_heads, head_size=head_size, sliding_window=window or None)
        for (window, kv_heads, head_size), layers in sorted(members.items())
    )


class CacheHome(NamedTuple):
    """Where a layer's keys and values live."""

    group: int  # of ``cache_groups``
    layer: int  # of that group's pool


def cache_homes(spec: DecoderSpec) -> dict[int, CacheHome]:
    """Return the home of every layer."""
    return {
        layer: CacheHome(group_index, cache_layer)
        for group_index, group in enumerate(cache_groups(spec))
        for cache_layer, layer in enumerate(group.layers)
    }
