"""Tiny decoders with every field of a description in use, random weights, and steps for their programs."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pageport.backend import (
    AttentionDescription,
    AttentionParams,
    DecoderDescription,
    KVSpec,
    LayerDescription,
    MLPDescription,
    NormDescription,
    RopeDescription,
    StoredTensor,
    WeightSpec,
)
from pageport.backend.decoder_weights import DecoderWeights, LayerWeights, NormWeights, Projection
from pageport.backend.device import Device
from pageport.backend.program import Bucket, ProgramStep

HIDDEN, INNER, VOCAB_SIZE, HEAD_SIZE, BLOCK_SIZE, NUM_BLOCKS, CONTEXT = 48, 40, 50, 16, 16, 24, 64
PROMPT, DECODES = Bucket(1, 16, CONTEXT), Bucket(8, 8, CONTEXT)

RMS = NormDescription(kind="rms", epsilon=1e-5)
LAYER_NORM = NormDescription(kind="layer", epsilon=1e-5)
SILU = MLPDescription(features=INNER, activation="silu", gated=True)
ATTENTION = AttentionDescription(
    num_heads=4,
    num_kv_heads=2,
    head_size=HEAD_SIZE,
    params=AttentionParams(scale=0.3),
    cache_group=0,
    cache_layer=0,
    rope=0,
)
LLAMA_LAYER = LayerDescription(attention_norm=RMS, attention=ATTENTION, mlp_norm=RMS, mlp=SILU)


def decoder(*layers: LayerDescription, dtype: str = "float32", **fields: Any) -> DecoderDescription:
    """Put every layer into the cache group it names, one after the other."""
    placed: list[LayerDescription] = []
    sizes = [0, 0]
    for layer in layers:
        group = layer.attention.cache_group
        placed.append(replace(layer, attention=replace(layer.attention, cache_layer=sizes[group])))
        sizes[group] += 1
    heads = layers[0].attention.num_kv_heads
    groups = tuple(
        KVSpec(
            num_layers=size,
            num_kv_heads=heads,
            head_size=HEAD_SIZE,
            value_head_size=HEAD_SIZE,
            block_size=BLOCK_SIZE,
            dtype=dtype,
            kind="sliding" if group else "full",
        )
        for group, size in enumerate(sizes)
        if size
    )
    usual: dict[str, Any] = {"final_norm": layers[0].mlp_norm, "ropes": (RopeDescription(rotary_size=HEAD_SIZE),)}
    return DecoderDescription(
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN,
        compute_dtype=dtype,
        max_positions=CONTEXT,
        cache_groups=groups,
        layers=tuple(placed),
        **(usual | fields),
    )


def _gpt2() -> DecoderDescription:
    attention = replace(ATTENTION, num_kv_heads=4, rope=None)
    mlp = MLPDescription(features=INNER, activation="gelu_tanh", gated=False)
    layer = LayerDescription(attention_norm=LAYER_NORM, attention=attention, mlp_norm=LAYER_NORM, mlp=mlp)
    return decoder(layer, layer, ropes=(), has_position_embedding=True)


def _gemma() -> DecoderDescription:
    capped = AttentionParams(scale=0.3, softcap=4.0)
    layer = LayerDescription(
        attention_norm=RMS,
        attention=replace(ATTENTION, params=capped, q_norm=RMS, k_norm=RMS),
        mlp_norm=RMS,
        mlp=MLPDescription(features=INNER, activation="gelu_tanh", gated=True),
        attention_output_norm=RMS,
        mlp_output_norm=RMS,
    )
    windowed = replace(layer.attention, params=replace(capped, sliding_window=11), cache_group=1, rope=1)
    ropes = (RopeDescription(rotary_size=HEAD_SIZE), RopeDescription(rotary_size=8))
    layers = layer, replace(layer, attention=windowed), layer
    return decoder(*layers, ropes=ropes, embedding_scale=HIDDEN**0.5, logit_softcap=7.0)


def _parallel() -> DecoderDescription:
    mlp = MLPDescription(features=INNER, activation="gelu", gated=False)
    layer = LayerDescription(
        attention_norm=LAYER_NORM, attention=ATTENTION, mlp_norm=LAYER_NORM, mlp=mlp, residual="parallel"
    )
    return decoder(layer, layer, ropes=(RopeDescription(rotary_size=8, interleaved=True),))


def _plain_silu() -> DecoderDescription:
    layer = replace(LLAMA_LAYER, attention=replace(ATTENTION, num_heads=6, num_kv_heads=1))
    return decoder(replace(layer, mlp=MLPDescription(features=INNER, activation="silu", gated=False)))


DECODERS = {
    "llama": decoder(LLAMA_LAYER, LLAMA_LAYER),
    "gpt2": _gpt2(),
    "gemma": _gemma(),
    "parallel": _parallel(),
    "plain silu": _plain_silu(),
}


def random_weights(device: Device, description: DecoderDescription, seed: int = 0) -> DecoderWeights:
    """Draw weights; layers with layer norms have biases everywhere, others for queries, keys and values."""
    generator = torch.Generator().manual_seed(seed)
    dtype: torch.dtype = getattr(torch, description.compute_dtype)

    def matrix(rows: int, columns: int) -> Any:
        values = torch.randn(rows, columns, generator=generator) * columns**-0.5
        stored = StoredTensor(scheme="f32", shape=(rows, columns), read=lambda: {"weight": values})
        spec = WeightSpec(
            name="matrix", out_features=rows, in_features=columns, compute_dtype=description.compute_dtype
        )
        return device.prepare_weight(spec, [stored])

    def projection(rows: int, columns: int, has_bias: bool) -> Projection:
        bias = torch.randn(rows, generator=generator).to(dtype) if has_bias else None
        return Projection(weight=matrix(rows, columns), bias=bias)

    def norm(described: NormDescription | None, features: int = HIDDEN) -> NormWeights | None:
        if described is None:
            return None
        bias = torch.randn(features, generator=generator) if described.kind == "layer" else None
        return NormWeights(weight=1 + 0.2 * torch.randn(features, generator=generator), bias=bias)

    def layer(described: LayerDescription) -> LayerWeights:
        attention, mlp = described.attention, described.mlp
        has_bias = described.mlp_norm.kind == "layer"
        rows = (attention.num_heads + 2 * attention.num_kv_heads) * HEAD_SIZE
        return LayerWeights(
            attention_norm=norm(described.attention_norm),
            qkv=projection(rows, HIDDEN, True),
            output=projection(HIDDEN, attention.num_heads * HEAD_SIZE, has_bias),
            mlp_norm=norm(described.mlp_norm),
            up=projection(mlp.features * (1 + mlp.gated), HIDDEN, has_bias),
            down=projection(HIDDEN, mlp.features, has_bias),
            attention_output_norm=norm(described.attention_output_norm),
            mlp_output_norm=norm(described.mlp_output_norm),
            q_norm=norm(attention.q_norm, HEAD_SIZE),
            k_norm=norm(attention.k_norm, HEAD_SIZE),
        )

    embedding = matrix(VOCAB_SIZE + 6, HIDDEN)
    return DecoderWeights(
        embedding=embedding,
        position_embedding=matrix(CONTEXT, HIDDEN) if description.has_position_embedding else None,
        layers=tuple(map(layer, description.layers)),
        final_norm=norm(description.final_norm),
        lm_head=Projection(weight=embedding),
        rope_tables=tuple(torch.randn(CONTEXT, rope.rotary_size, generator=generator) for rope in description.ropes),
    )


def steps(num_groups: int, seed: int = 0) -> Iterator[tuple[ProgramStep, int, int]]:
    """Yield steps with how many of their tokens and requests are real: three prompts in chunks, then decodes."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [37, 5, 16]
    blocks = torch.randperm(NUM_BLOCKS, generator=generator)[: 3 * CONTEXT // BLOCK_SIZE].view(3, -1).int()
    for request, length in enumerate(lengths):
        for start in range(0, length, 13):
            positions = range(start, min(start + 13, length))
            yield _step(PROMPT, [request], [positions], blocks, num_groups, generator), len(positions), 1
    for turn in range(3):
        spans = [range(length + turn, length + turn + 1) for length in lengths]
        yield _step(DECODES, [0, 1, 2], spans, blocks, num_groups, generator), 3, 3


def _step(
    bucket: Bucket,
    requests: Sequence[int],
    spans: Sequence[range],
    blocks: Tensor,
    num_groups: int,
    generator: torch.Generator,
) -> ProgramStep:
    positions, slots = torch.zeros(bucket.tokens, dtype=torch.int64), torch.full((bucket.tokens,), -1)
    token_ids = torch.zeros_like(positions)
    seq_lens, last = torch.zeros(bucket.requests, dtype=torch.int32), torch.zeros(bucket.requests, dtype=torch.int64)
    table = torch.full((bucket.requests, CONTEXT // BLOCK_SIZE), -1, dtype=torch.int32)
    token = 0
    for row, (request, span) in enumerate(zip(requests, spans, strict=True)):
        for position in span:
            positions[token] = position
            slots[token] = blocks[request, position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
            token_ids[token] = torch.randint(VOCAB_SIZE, (), generator=generator)
            token += 1
        seq_lens[row], last[row] = span.stop, token - 1
        used = -(-span.stop // BLOCK_SIZE)
        table[row, :used] = blocks[request, :used]
    return ProgramStep(
        bucket=bucket,
        token_ids=token_ids,
        positions=positions,
        seq_lens=seq_lens,
        last_tokens=last,
        block_tables=num_groups * (table,),
        slot_mappings=num_groups * (slots,),
    )
