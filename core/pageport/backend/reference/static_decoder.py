"""``StaticProgram``: a whole decoder in plain torch whose shapes depend on its bucket alone.

A pure function of tensors but for the KV pools, which it writes in place: what compilers behind ``torch.compile`` take
as one graph. Nothing waits for the device, and no branch looks at a number in a tensor.
"""

from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from pageport.backend.choice import Choice
from pageport.backend.decoder_weights import DecoderWeights, LayerWeights, NormWeights
from pageport.backend.description import DecoderDescription, LayerDescription, MLPDescription, NormDescription
from pageport.backend.kv import AttentionParams
from pageport.backend.program import Bucket, ModelProgram, ProgramOutput, ProgramStep
from pageport.backend.reference.static_attention import static_attention
from pageport.backend.reference.static_choose import ChoiceTensors, choose_statically
from pageport.errors import UnsupportedFeature

if TYPE_CHECKING:
    from pageport.backend.device import Device

# The newest `DecoderDescription.version` that this program computes.
DESCRIPTION_VERSION = 1


class GraphInputs(NamedTuple):
    """The tensors of a ``ProgramStep``."""

    token_ids: Tensor  # int64 [tokens]
    positions: Tensor  # int64 [tokens]
    seq_lens: Tensor  # int32 [requests]
    last_tokens: Tensor  # int64 [requests]
    block_tables: tuple[Tensor, ...]  # int32 [requests, blocks], one a cache group
    slot_mappings: tuple[Tensor, ...]  # int64 [tokens]
    choice: ChoiceTensors


class GraphOutputs(NamedTuple):
    """What one step gives."""

    hidden: Tensor  # [tokens, hidden]
    logits: Tensor  # [requests, vocab]
    token_ids: Tensor  # int64 [requests]
    peaks: Tensor  # float32 [requests]


StaticGraph = Callable[[GraphInputs], GraphOutputs]


class StaticDecoder:
    """The decoder of a description over its weights and pools; a call is one step."""

    def __init__(
        self, device: "Device", description: DecoderDescription, weights: DecoderWeights, pools: Sequence[Any]
    ) -> None:
        self._device = device
        self._description = description
        self._weights = weights
        self._pools = tuple(pools)

    def __call__(self, inputs: GraphInputs) -> GraphOutputs:
        hidden = self._hidden(inputs)
        logits = self._logits(hidden.index_select(0, inputs.last_tokens))
        choice = self.choose(logits, inputs.choice)
        return GraphOutputs(hidden, logits, choice.token_ids, choice.peaks)

    def attend(
        self,
        pool: Any,
        layer: int,
        query: Tensor,
        params: AttentionParams,
        block_table: Tensor,
        positions: Tensor,
        seq_lens: Tensor,
    ) -> Tensor:
        """Attend as ``static_attention`` does; for a device that has a kernel for it."""
        return static_attention(pool, layer, query, params, block_table, positions, seq_lens)

    def choose(self, logits: Tensor, choice: ChoiceTensors) -> Choice:
        """Choose as ``choose_statically`` does; for a device that leaves some of it to the host."""
        return choose_statically(logits, choice)

    def _hidden(self, inputs: GraphInputs) -> Tensor:
        device, description, weights = self._device, self._description, self._weights
        x = device.embed(weights.embedding, inputs.token_ids)
        if description.embedding_scale is not None:
            x = x * description.embedding_scale
        if description.has_position_embedding:
            x = x + device.embed(weights.position_embedding, inputs.positions)
        for layer, layer_weights in zip(description.layers, weights.layers, strict=True):
            x = self._layer(layer, layer_weights, x, inputs)
        return self._norm(description.final_norm, weights.final_norm, x)

    def _logits(self, hidden: Tensor) -> Tensor:
        head = self._weights.lm_head
        logits = self._device.linear(head.weight, hidden, head.bias)[:, : self._description.vocab_size]
        cap = self._description.logit_softcap
        return logits if cap is None else self._device.softcap(logits, cap)

    def _layer(self, layer: LayerDescription, weights: LayerWeights, x: Tensor, inputs: GraphInputs) -> Tensor:
        attended = self._attend(layer, weights, self._norm(layer.attention_norm, weights.attention_norm, x), inputs)
        if layer.attention_output_norm is not None and weights.attention_output_norm is not None:
            attended = self._norm(layer.attention_output_norm, weights.attention_output_norm, attended)
        before_mlp = x if layer.residual == "parallel" else x + attended
        fed = self._feed_forward(layer.mlp, weights, self._norm(layer.mlp_norm, weights.mlp_norm, before_mlp))
        if layer.mlp_output_norm is not None and weights.mlp_output_norm is not None:
            fed = self._norm(layer.mlp_output_norm, weights.mlp_output_norm, fed)
        return x + attended + fed

    def _attend(self, layer: LayerDescription, weights: LayerWeights, x: Tensor, inputs: GraphInputs) -> Tensor:
        attention, device = layer.attention, self._device
        heads, kv_heads, size = attention.num_heads, attention.num_kv_heads, attention.head_size
        qkv = device.linear(weights.qkv.weight, x, weights.qkv.bias)
        first_value = (heads + kv_heads) * size
        parts = (qkv[:, : heads * size], qkv[:, heads * size : first_value], qkv[:, first_value:])
        query, key, value = (part.view(len(x), -1, size) for part in parts)
        if attention.q_norm is not None and weights.q_norm is not None:
            query = self._norm(attention.q_norm, weights.q_norm, query)
        if attention.k_norm is not None and weights.k_norm is not None:
            key = self._norm(attention.k_norm, weights.k_norm, key)
        if attention.rope is not None:
            query, key = query.contiguous(), key.contiguous()
            table = self._weights.rope_tables[attention.rope]
            device.rope(query, key, inputs.positions, table, self._description.ropes[attention.rope].interleaved)
        pool = self._pools[attention.cache_group]
        slots = inputs.slot_mappings[attention.cache_group]
        device.write_kv(pool, attention.cache_layer, key, value, slots, attention.params)
        table = inputs.block_tables[attention.cache_group]
        attended = self.attend(
            pool, attention.cache_layer, query, attention.params, table, inputs.positions, inputs.seq_lens
        )
        return device.linear(weights.output.weight, attended.flatten(1), weights.output.bias)

    def _feed_forward(self, mlp: MLPDescription, weights: LayerWeights, x: Tensor) -> Tensor:
        device = self._device
        up = device.linear(weights.up.weight, x, weights.up.bias)
        is_tanh = mlp.activation == "gelu_tanh"
        if mlp.gated:
            activated = device.silu_mul(up) if mlp.activation == "silu" else device.gelu_mul(up, is_tanh)
        else:
            activated = torch.nn.functional.silu(up) if mlp.activation == "silu" else device.gelu(up, is_tanh)
        return device.linear(weights.down.weight, activated, weights.down.bias)

    def _norm(self, norm: NormDescription, weights: NormWeights, x: Tensor) -> Tensor:
        if norm.kind == "rms":
            return self._device.rms_norm(x, weights.weight, norm.epsilon)
        return self._device.layer_norm(x, weights.weight, weights.bias, norm.epsilon)


class StaticProgram(ModelProgram):
    """A ``StaticDecoder`` that the device compiles a bucket at a time."""

    samples = True

    def __init__(self, device: "Device", decoder: StaticGraph, description: DecoderDescription) -> None:
        self._device = device
        self._decoder = decoder
        self._description = description
        self._graphs: dict[Bucket, StaticGraph] = {}

    def compile(self, bucket: Bucket) -> None:
        """Have the device compile the decoder for a bucket, and run what it made of it once, over padding alone.

        Many compilers begin when they see the first tensors.
        """
        graph = _with_code_of_its_own(self._decoder, bucket)
        compiled = self._device.compile_graph(graph, bucket)
        if compiled is not graph:
            compiled(padding_inputs(self._description, bucket, self._device.torch_device))
        self._graphs[bucket] = compiled

    def step(self, step: ProgramStep) -> ProgramOutput:
        vocab_size = self._description.vocab_size
        greedy = ChoiceTensors.greedy(step.bucket.requests, vocab_size, step.token_ids.device)
        inputs = GraphInputs(
            token_ids=step.token_ids,
            positions=step.positions,
            seq_lens=step.seq_lens,
            last_tokens=step.last_tokens,
            block_tables=step.block_tables,
            slot_mappings=step.slot_mappings,
            choice=greedy if step.choice is None else ChoiceTensors.of(step.choice),
        )
        return _Outputs(self._graphs[step.bucket](inputs), is_chosen=step.choice is not None)

    def close(self) -> None:
        self._graphs.clear()


def padding_inputs(description: DecoderDescription, bucket: Bucket, device: torch.device) -> GraphInputs:
    """Return the tensors of a step that nobody has a request in."""
    requests, tokens, context = bucket

    def filled(value: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.full(shape, value, dtype=dtype, device=device)

    return GraphInputs(
        token_ids=filled(0, tokens),
        positions=filled(0, tokens),
        seq_lens=filled(0, requests, dtype=torch.int32),
        last_tokens=filled(0, requests),
        block_tables=tuple(
            filled(-1, requests, context // group.block_size, dtype=torch.int32) for group in description.cache_groups
        ),
        slot_mappings=tuple(filled(-1, tokens) for _ in description.cache_groups),
        choice=ChoiceTensors.greedy(requests, description.vocab_size, device),
    )


def _with_code_of_its_own(decoder: StaticGraph, bucket: Bucket) -> StaticGraph:
    """Return a function that calls ``decoder`` and whose code no other has.

    ``torch.compile`` counts what it makes of one code, gives up behind a few, and looks through all of it in each step.
    """

    def graph(inputs: GraphInputs) -> GraphOutputs:
        return decoder(inputs)

    name = f"decoder_{bucket.requests}_{bucket.tokens}_{bucket.context}"
    return FunctionType(graph.__code__.replace(co_name=name), graph.__globals__, name, None, graph.__closure__)


class _Outputs(ProgramOutput):
    def __init__(self, outputs: GraphOutputs, is_chosen: bool) -> None:
        self._outputs = outputs
        self.choice = Choice(outputs.token_ids, outputs.peaks) if is_chosen else None

    def logits(self) -> Tensor:
        return self._outputs.logits

    def hidden(self) -> Tensor:
        return self._outputs.hidden


def build_static_program(
    device: "Device", description: DecoderDescription, weights: DecoderWeights, pools: Sequence[Any]
) -> StaticProgram:
    """Return the program of a decoder on a device that inherits its pools.

    Raises:
        UnsupportedFeature: the description is newer than this program.
    """
    if description.version > DESCRIPTION_VERSION:
        raise UnsupportedFeature(
            f"The plain-torch program computes decoders of version {DESCRIPTION_VERSION}; this one needs "
            f"{description.version}."
        )
    if not all(layer.attention.params.causal for layer in description.layers):
        raise UnsupportedFeature("The plain-torch program computes causal attention only; a layer is not causal.")
    return StaticProgram(device, StaticDecoder(device, description, weights, pools), description)
