"""A decoder of one small layer, described by hand, and steps for its program."""

from collections.abc import Sequence
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
from pageport.backend.program import Bucket, ModelProgram, ProgramStep

HEADS, KV_HEADS, HEAD_SIZE, HIDDEN, INNER, VOCAB_SIZE = 4, 2, 8, 32, 48, 50
BLOCK_SIZE, NUM_BLOCKS, CONTEXT = 4, 12, 32
PROMPT, DECODES = Bucket(1, 16, CONTEXT), Bucket(4, 4, CONTEXT)


def described() -> DecoderDescription:
    norm = NormDescription(kind="rms", epsilon=1e-5)
    attention = AttentionDescription(
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_size=HEAD_SIZE,
        params=AttentionParams(scale=0.3),
        cache_group=0,
        cache_layer=0,
        rope=0,
    )
    mlp = MLPDescription(features=INNER, activation="silu", gated=True)
    spec = KVSpec(
        num_layers=1,
        num_kv_heads=KV_HEADS,
        head_size=HEAD_SIZE,
        value_head_size=HEAD_SIZE,
        block_size=BLOCK_SIZE,
        dtype="float32",
    )
    return DecoderDescription(
        vocab_size=VOCAB_SIZE,
        hidden_size=HIDDEN,
        compute_dtype="float32",
        max_positions=CONTEXT,
        cache_groups=(spec,),
        layers=(LayerDescription(attention_norm=norm, attention=attention, mlp_norm=norm, mlp=mlp),),
        final_norm=norm,
        ropes=(RopeDescription(rotary_size=HEAD_SIZE),),
    )


def weights_on(device: Device) -> DecoderWeights:
    generator = torch.Generator().manual_seed(7)

    def matrix(rows: int, columns: int) -> Any:
        values = torch.randn(rows, columns, generator=generator) * columns**-0.5
        stored = StoredTensor(scheme="f32", shape=(rows, columns), read=lambda: {"weight": values})
        spec = WeightSpec(name="matrix", out_features=rows, in_features=columns, compute_dtype="float32")
        return device.prepare_weight(spec, [stored])

    def norm() -> NormWeights:
        return NormWeights(weight=1 + 0.1 * torch.randn(HIDDEN, generator=generator))

    layer = LayerWeights(
        attention_norm=norm(),
        qkv=Projection(weight=matrix((HEADS + 2 * KV_HEADS) * HEAD_SIZE, HIDDEN)),
        output=Projection(weight=matrix(HIDDEN, HEADS * HEAD_SIZE)),
        mlp_norm=norm(),
        up=Projection(weight=matrix(2 * INNER, HIDDEN)),
        down=Projection(weight=matrix(HIDDEN, INNER)),
    )
    return DecoderWeights(
        embedding=matrix(VOCAB_SIZE, HIDDEN),
        position_embedding=None,
        layers=(layer,),
        final_norm=norm(),
        lm_head=Projection(weight=matrix(VOCAB_SIZE, HIDDEN)),
        rope_tables=(torch.randn(CONTEXT, HEAD_SIZE, generator=generator),),
    )


def build(device: Device, buckets: Sequence[Bucket] = (DECODES, PROMPT)) -> ModelProgram:
    """Return a program over a pool of its own, with nothing compiled."""
    description = described()
    pools = [device.allocate_kv(spec, NUM_BLOCKS) for spec in description.cache_groups]
    return device.build_model(description, weights_on(device), pools, buckets)


def prompt_step(token_ids: Sequence[int], blocks: Sequence[int], bucket: Bucket = PROMPT) -> ProgramStep:
    """Return the step of a whole prompt, filled up."""
    count = len(token_ids)
    padding = (bucket.tokens - count) * [0]
    slots = [blocks[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE for position in range(count)]
    return ProgramStep(
        bucket=bucket,
        token_ids=_integers([*token_ids, *padding]),
        positions=_integers([*range(count), *padding]),
        seq_lens=_integers([count]).int(),
        last_tokens=_integers([count - 1]),
        block_tables=(_table([blocks], bucket),),
        slot_mappings=(_integers([*slots, *[-1 for _ in padding]]),),
    )


def decode_step(rows: Sequence[tuple[int, int, Sequence[int]]], bucket: Bucket = DECODES) -> ProgramStep:
    """Return the step of requests with (token id, position, blocks), filled up."""
    padding = (bucket.requests - len(rows)) * [0]
    slots = [blocks[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE for _, position, blocks in rows]
    return ProgramStep(
        bucket=bucket,
        token_ids=_integers([*(token for token, _, _ in rows), *padding]),
        positions=_integers([*(position for _, position, _ in rows), *padding]),
        seq_lens=_integers([*(position + 1 for _, position, _ in rows), *padding]).int(),
        last_tokens=_integers([*range(len(rows)), *padding]),
        block_tables=(_table([*(blocks for _, _, blocks in rows), *([] for _ in padding)], bucket),),
        slot_mappings=(_integers([*slots, *[-1 for _ in padding]]),),
    )


def _integers(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _table(rows: Sequence[Sequence[int]], bucket: Bucket) -> Tensor:
    width = bucket.context // BLOCK_SIZE
    return torch.tensor([[*blocks, *(width - len(blocks)) * [-1]] for blocks in rows], dtype=torch.int32)
