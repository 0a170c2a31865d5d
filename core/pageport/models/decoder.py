"""``Decoder``: runs any ``DecoderSpec`` by calling ops and taking views, nothing else."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from pageport.backend.batch import AttentionBatch
from pageport.backend.decoder_weights import DecoderWeights
from pageport.backend.op_table import OpTable
from pageport.models.description import rounded_embedding_scale
from pageport.models.inputs import ModelInputs
from pageport.models.layer import DecoderLayer, LayerBuffers, LayerShape, TailBuffers
from pageport.models.norms import Norm, make_norm
from pageport.models.rope import rope_tables
from pageport.models.spec import DecoderSpec, cache_homes
from pageport.models.workspace import Workspace


class Decoder:
    """A decoder-only model on one device.

    It computes in persistent buffers for up to ``max_tokens`` a step and allocates nothing while it runs, apart from
    logit rows that grow. Results are views of these buffers: valid until the next call.
    """

    def __init__(
        self,
        spec: DecoderSpec,
        weights: DecoderWeights,
        ops: OpTable,
        *,
        dtype: torch.dtype,
        device: torch.device,
        max_tokens: int,
        max_model_len: int | None = None,
    ) -> None:
        """Bind every layer to its weights, ops and buffers.

        Args:
            max_model_len: longest sequence that will be served; rotary tables are made for it (see ``rope_table``).
                Default: what the model allows.
        """
        self._spec = spec
        self._weights = weights
        self._stored_vocab = spec.lm_head.out_features if spec.lm_head else spec.embedding.rows
        self._embed, self._add, self._scale = ops.embed, ops.add, ops.scale
        self._linear, self._softcap, self._gather_rows = ops.linear, ops.softcap, ops.gather_rows
        # Gemma multiplies by the scale as its dtype can express it.
        self._embedding_scale = rounded_embedding_scale(spec, dtype)
        norms = [
            make_norm(layer.attention_norm, layer_weights.attention_norm, ops)
            for layer, layer_weights in zip(spec.layers, weights.layers, strict=True)
        ]
        norms.append(make_norm(spec.final_norm, weights.final_norm, ops))
        self._first_norm = norms[0]
        tables = rope_tables(spec.ropes, max_model_len or spec.max_positions, device)
        self._layers = _bind_layers(spec, weights, ops, norms[1:], tables)
        self._workspace = Workspace(dtype, device)
        shapes = [LayerShape.of(layer) for layer in spec.layers]
        self._shapes = tuple(dict.fromkeys(shapes))
        self._shape_of_layer = [self._shapes.index(shape) for shape in shapes]
        self._max_tokens = max_tokens
        for shape in self._shapes:
            LayerBuffers.reserve(self._workspace, shape, max_tokens)
        self._num_tokens = -1
        self._buffers: list[LayerBuffers] = []  # one a layer, for a step of _num_tokens

    def hidden(
        self,
        inputs: ModelInputs,
        pools: Sequence[Any],
        batches: Sequence[AttentionBatch],
        rows: Int64[Tensor, "rows"] | None = None,
    ) -> Float[Tensor, "rows hidden"]:
        """Compute one step up to and including the final norm.

        Args:
            pools, batches: one a cache group, in the order of ``cache_groups(spec)``; keys and values of this step
                are written to the pools.
            rows: the tokens whose hidden states are wanted, in the order they are returned in; default: all.
        """
        positions = inputs.positions
        self._bind_buffers(inputs.token_ids.shape[0])
        first = self._buffers[0]
        residual, normed = first.residual, first.normed
        self._embed(self._weights.embedding, inputs.token_ids, residual)
        if self._embedding_scale is not None:
            self._scale(residual, self._embedding_scale, residual)
        if self._weights.position_embedding is not None:
            self._embed(self._weights.position_embedding, positions, first.delta)
            self._add(residual, first.delta, residual)
        self._first_norm(residual, normed)
        for layer, buffers in zip(self._layers[:-1], self._buffers[:-1], strict=True):
            layer(buffers, positions, pools, batches)
        last, buffers = self._layers[-1], self._buffers[-1]
        last.attend(buffers, positions, pools, batches)
        if rows is not None and not rows.shape[0]:
            return buffers.normed[:0]  # no op is asked for no rows
        tail = buffers if rows is None else self._pick_rows(buffers, rows)
        last.finish(tail)
        return tail.normed

    def logits(
        self, hidden: Float[Tensor, "tokens hidden"], rows: Int64[Tensor, "rows"] | None = None
    ) -> Float[Tensor, "logit_rows vocab"]:
        """Return the logits of ``rows`` of ``hidden``, or of all, in the compute dtype."""
        if rows is not None:
            gathered = self._workspace.growing_view("gathered", rows.shape[0], hidden.shape[1])
            hidden = self._gather_rows(hidden, rows, gathered)
        if not hidden.shape[0]:
            return hidden.new_empty((0, self._spec.vocab_size))
        head = self._weights.lm_head
        logits = self._workspace.growing_view("logits", hidden.shape[0], self._stored_vocab)
        self._linear(head.weight, hidden, head.bias, logits)
        if self._spec.logit_softcap is not None:
            self._softcap(logits, self._spec.logit_softcap, logits)
        return logits[:, : self._spec.vocab_size]

    def reserve_logits(self, num_rows: int) -> None:
        """Make room for this many rows of logits: up to there ``logits`` writes to one address, as graphs need."""
        self._workspace.reserve("logits", num_rows * self._stored_vocab)

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the buffers it computes in."""
        return self._workspace.num_bytes

    def _pick_rows(self, buffers: LayerBuffers, rows: Tensor) -> TailBuffers:
        """Copy the residual of these tokens and what they attended to, which is all that the last layer still reads."""
        picked = TailBuffers.beside(self._workspace, self._shapes[self._shape_of_layer[-1]], rows.shape[0])
        self._gather_rows(buffers.residual, rows, picked.residual)
        self._gather_rows(buffers.attended, rows, picked.attended)
        return picked

    def _bind_buffers(self, num_tokens: int) -> None:
        """Take views for a step of this size; steps of the same size in a row share them."""
        if num_tokens == self._num_tokens:
            return
        assert num_tokens <= self._max_tokens, f"a step of {num_tokens} tokens; the buffers hold {self._max_tokens}"
        by_shape = [LayerBuffers(self._workspace, shape, num_tokens) for shape in self._shapes]
        self._buffers = [by_shape[index] for index in self._shape_of_layer]
        self._num_tokens = num_tokens


def _bind_layers(
    spec: DecoderSpec, weights: DecoderWeights, ops: OpTable, next_norms: Sequence[Norm], tables: Sequence[Tensor]
) -> list[DecoderLayer]:
    homes = cache_homes(spec)
    layers = []
    for index, (layer, layer_weights) in enumerate(zip(spec.layers, weights.layers, strict=True)):
        rope = layer.attention.rope
        layers.append(
            DecoderLayer(
                layer,
                layer_weights,
                ops,
                next_norm=next_norms[index],
                cache_group=homes[index].group,
                cache_layer=homes[index].layer,
                rope_table=None if rope is None else tables[rope],
                rope_interleaved=rope is not None and spec.ropes[rope].interleaved,
            )
        )
    return layers
