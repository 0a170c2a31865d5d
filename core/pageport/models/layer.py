"""``DecoderLayer``: one layer of a ``DecoderSpec``, bound to its weights and ops."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from pageport.backend.batch import AttentionBatch
from pageport.backend.decoder_weights import LayerWeights, NormWeights, Projection
from pageport.backend.kv import AttentionParams
from pageport.backend.op_table import OpTable
from pageport.errors import UnsupportedModel
from pageport.models.norms import Norm, make_norm
from pageport.models.spec import AttentionSpec, LayerSpec, MLPSpec, NormSpec
from pageport.models.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class LayerShape:
    """The widths that decide a layer's buffers; layers of equal shape compute in the same ones."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    up_features: int
    down_features: int
    has_qk_norm: bool
    has_output_norm: bool

    @classmethod
    def of(cls, layer: LayerSpec) -> "LayerShape":
        return cls(
            hidden_size=layer.attention.output.out_features,
            num_heads=layer.attention.num_heads,
            num_kv_heads=layer.attention.num_kv_heads,
            head_size=layer.attention.head_size,
            up_features=layer.mlp.up.out_features,
            down_features=layer.mlp.down.in_features,
            has_qk_norm=layer.attention.q_norm is not None or layer.attention.k_norm is not None,
            has_output_norm=layer.attention_output_norm is not None or layer.mlp_output_norm is not None,
        )


class TailBuffers:
    """Views of the workspace for what a layer does behind attention, with ``num_rows`` of a step's tokens."""

    __slots__ = ("activated", "attended", "delta", "normed", "normed_delta", "residual", "up")

    def __init__(
        self,
        workspace: Workspace,
        shape: LayerShape,
        num_rows: int,
        *,
        residual: str = "residual",
        delta: str = "delta",
        attended: str = "narrow",
    ) -> None:
        """Take views of the buffers that are called like this."""
        self.residual = workspace.view(residual, num_rows, shape.hidden_size)
        self.normed = workspace.view("normed", num_rows, shape.hidden_size)
        self.delta = workspace.view(delta, num_rows, shape.hidden_size)
        if shape.has_output_norm:
            self.normed_delta = workspace.view("normed_delta", num_rows, shape.hidden_size)
        self.attended = workspace.view(attended, num_rows, shape.num_heads * shape.head_size)
        self.up = workspace.view("wide", num_rows, shape.up_features)
        self.activated = workspace.view("narrow", num_rows, shape.down_features)

    @classmethod
    def beside(cls, workspace: Workspace, shape: LayerShape, num_rows: int) -> "TailBuffers":
        """Take views that rows of ``LayerBuffers`` can be picked to once it has attended.

        What is read then, the residual and what was attended to, lies elsewhere; the buffers for it are free by then.
        """
        return cls(workspace, shape, num_rows, residual="delta", delta="residual", attended="wide")


class LayerBuffers(TailBuffers):
    """Views of the workspace for layers of one shape and a step of ``num_tokens``."""

    __slots__ = ("attended_heads", "key", "normed_key", "normed_query", "qkv", "query", "value")

    def __init__(self, workspace: Workspace, shape: LayerShape, num_tokens: int) -> None:
        super().__init__(workspace, shape, num_tokens)
        heads, kv_heads, head_size = shape.num_heads, shape.num_kv_heads, shape.head_size
        query_size, kv_size = heads * head_size, kv_heads * head_size
        self.qkv = workspace.view("wide", num_tokens, query_size + 2 * kv_size)
        self.query = _heads(self.qkv, 0, heads, head_size)
        self.key = _heads(self.qkv, query_size, kv_heads, head_size)
        self.value = _heads(self.qkv, query_size + kv_size, kv_heads, head_size)
        if shape.has_qk_norm:
            self.normed_query = workspace.view("normed_query", num_tokens, heads, head_size)
            self.normed_key = workspace.view("normed_key", num_tokens, kv_heads, head_size)
        self.attended_heads = self.attended.view(num_tokens, heads, head_size)

    @staticmethod
    def reserve(workspace: Workspace, shape: LayerShape, max_tokens: int) -> None:
        """Make the workspace big enough for steps of ``max_tokens``.

        Attention and MLP never overlap in time, so they share the buffers "wide" and "narrow".
        """
        query_size, kv_size = shape.num_heads * shape.head_size, shape.num_kv_heads * shape.head_size
        for name, features in {
            "residual": shape.hidden_size,
            "normed": shape.hidden_size,
            "delta": shape.hidden_size,
            "normed_delta": shape.hidden_size if shape.has_output_norm else 0,
            "normed_query": query_size if shape.has_qk_norm else 0,
            "normed_key": kv_size if shape.has_qk_norm else 0,
            "wide": max(query_size + 2 * kv_size, shape.up_features),
            "narrow": max(query_size, shape.down_features),
        }.items():
            workspace.reserve(name, max_tokens * features)


class DecoderLayer:
    """Attention and MLP of one layer, ending in the norm that comes next in the model.

    It finds its normed input in ``buffers.normed`` and leaves the next layer's there, so that adding to the residual
    and norming the sum is one op.
    """

    def __init__(
        self,
        spec: LayerSpec,
        weights: LayerWeights,
        ops: OpTable,
        *,
        next_norm: Norm,
        cache_group: int,
        cache_layer: int,
        rope_table: Tensor | None,
        rope_interleaved: bool,
    ) -> None:
        attention = spec.attention
        self._qkv, self._output = weights.qkv, weights.output
        self._down = weights.down
        self._q_norm = _optional_norm(attention.q_norm, weights.q_norm, ops)
        self._k_norm = _optional_norm(attention.k_norm, weights.k_norm, ops)
        self._attention_output_norm = _optional_norm(spec.attention_output_norm, weights.attention_output_norm, ops)
        self._mlp_norm = make_norm(spec.mlp_norm, weights.mlp_norm, ops)
        self._mlp_output_norm = _optional_norm(spec.mlp_output_norm, weights.mlp_output_norm, ops)
        self._next_norm = next_norm
        self._is_parallel = spec.residual == "parallel"
        self._cache_group, self._cache_layer = cache_group, cache_layer
        self._rope_table, self._rope_interleaved = rope_table, rope_interleaved
        self._params = attention_params(attention)
        self._linear, self._write_kv, self._attention = ops.linear, ops.write_kv, ops.attention
        self._rope_write_kv, self._add = ops.rope_write_kv, ops.add
        self._expand = _expansion(spec.mlp, weights.up, ops)

    def __call__(
        self, buffers: LayerBuffers, positions: Tensor, pools: Sequence[Any], batches: Sequence[AttentionBatch]
    ) -> None:
        """Compute one step in place of ``buffers``."""
        self.attend(buffers, positions, pools, batches)
        self.finish(buffers)

    def attend(
        self, buffers: LayerBuffers, positions: Tensor, pools: Sequence[Any], batches: Sequence[AttentionBatch]
    ) -> None:
        """Write keys and values, and what each token attends to into ``buffers.attended``."""
        pool, batch = pools[self._cache_group], batches[self._cache_group]
        self._linear(self._qkv.weight, buffers.normed, self._qkv.bias, buffers.qkv)
        query, key = buffers.query, buffers.key
        if self._q_norm is not None:
            self._q_norm(query, buffers.normed_query)
            query = buffers.normed_query
        if self._k_norm is not None:
            self._k_norm(key, buffers.normed_key)
            key = buffers.normed_key
        if self._rope_table is None:
            self._write_kv(pool, self._cache_layer, key, buffers.value, batch.slot_mapping, self._params)
        else:
            self._rope_write_kv(
                pool,
                self._cache_layer,
                query,
                key,
                buffers.value,
                positions,
                self._rope_table,
                self._rope_interleaved,
                batch.slot_mapping,
                self._params,
            )
        self._attention(pool, self._cache_layer, query, self._params, batch, buffers.attended_heads)

    def finish(self, buffers: TailBuffers) -> None:
        """Compute the rest of the layer for tokens whose ``residual`` and ``attended`` are in ``buffers``."""
        self._linear(self._output.weight, buffers.attended, self._output.bias, buffers.delta)
        attended = _normed(self._attention_output_norm, buffers)
        if self._is_parallel:
            self._mlp_norm(buffers.residual, buffers.normed)
            self._add(buffers.residual, attended, buffers.residual)
        else:
            self._mlp_norm.join(attended, buffers.residual, buffers.normed)
        self._next_norm.join(self._feed_forward(buffers), buffers.residual, buffers.normed)

    def _feed_forward(self, buffers: TailBuffers) -> Tensor:
        self._expand(buffers.normed, buffers.up, buffers.activated)
        self._linear(self._down.weight, buffers.activated, self._down.bias, buffers.delta)
        return _normed(self._mlp_output_norm, buffers)


def attention_params(spec: AttentionSpec) -> AttentionParams:
    """Return what the device is told of a layer's attention."""
    return AttentionParams(scale=spec.scale, sliding_window=spec.sliding_window, softcap=spec.softcap)


def _heads(rows: Tensor, first: int, heads: int, head_size: int) -> Tensor:
    """View columns from ``first`` on as heads, tokens as far apart as the rows are, also where there is one alone."""
    return rows.as_strided((len(rows), heads, head_size), (rows.stride(0), head_size, 1), rows.storage_offset() + first)


def _normed(norm: Norm | None, buffers: TailBuffers) -> Tensor:
    """Return the delta, through its output norm where the layer has one."""
    if norm is None:
        return buffers.delta
    norm(buffers.delta, buffers.normed_delta)
    return buffers.normed_delta


def _optional_norm(spec: NormSpec | None, weights: NormWeights | None, ops: OpTable) -> Norm | None:
    return None if spec is None or weights is None else make_norm(spec, weights, ops)


def _expansion(mlp: MLPSpec, up: Projection, ops: OpTable) -> Callable[[Tensor, Tensor, Tensor], object]:
    """Return what projects its first argument up and writes the activated product to the last; the second is room."""
    weight, bias = up.weight, up.bias
    if mlp.gated and mlp.activation == "silu":
        linear_silu_mul = ops.linear_silu_mul
        return lambda x, room, out: linear_silu_mul(weight, x, bias, room, out)
    linear, is_tanh = ops.linear, mlp.activation == "gelu_tanh"
    if mlp.activation == "silu":
        raise UnsupportedModel("The model has an MLP of silu without a gate; no op computes that yet.")
    activate = ops.gelu_mul if mlp.gated else ops.gelu
    return lambda x, room, out: activate(linear(weight, x, bias, room), is_tanh, out)
