"""A device that replaces nothing, ragged batches, and an attention oracle that knows no blocks."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from pageport.backend import AttentionParams, Capabilities, KVSpec, Memory
from pageport.backend.batch import AttentionBatch, AttentionMirror
from pageport.backend.device import Device


class PlainDevice(Device):
    """The least a backend may bring."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            kv_dtypes=("float32", "bfloat16", "float16", "float8_e5m2", "int8"),
            block_sizes=(1, 4, 16),
            kv_kinds=("full", "sliding"),
            attention_variants=("sliding_window", "softcap", "sinks", "alibi"),
        )

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def memory(self) -> Memory:
        return Memory(total=2**30, free=2**29, reserved_by_this_process=2**20)


@pytest.fixture
def device() -> PlainDevice:
    return PlainDevice()


def kv_spec(**changes: object) -> KVSpec:
    settings = {
        "num_layers": 2,
        "num_kv_heads": 2,
        "head_size": 8,
        "value_head_size": 8,
        "block_size": 4,
        "dtype": "float32",
    }
    return KVSpec(**(settings | changes))  # type: ignore[arg-type]


def make_batch(tables: Sequence[Sequence[int]], counts: Sequence[int], lengths: Sequence[int], block_size: int):
    """Build a batch; requests of length 0 are padding."""
    width = max([len(table) for table in tables], default=0)
    table = np.full((len(tables), width), -1, dtype=np.int32)
    for row, blocks in enumerate(tables):
        table[row, : len(blocks)] = blocks
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    slots = [
        table[row, position // block_size] * block_size + position % block_size if length else -1
        for row, (count, length) in enumerate(zip(counts, lengths, strict=True))
        for position in range(length - count, length)
    ]
    mirror = AttentionMirror(query_start_loc=starts, seq_lens=np.array(lengths, dtype=np.int32), block_table=table)
    return AttentionBatch(
        num_requests=len(tables),
        num_tokens=int(starts[-1]),
        max_query_len=max(counts, default=0),
        max_seq_len=max(lengths, default=0),
        num_decodes=0,
        query_start_loc=torch.from_numpy(mirror.query_start_loc),
        seq_lens=torch.from_numpy(mirror.seq_lens),
        block_table=torch.from_numpy(mirror.block_table),
        slot_mapping=torch.tensor(slots, dtype=torch.int64),
        host=mirror,
    )


def dense_attention(query: Tensor, keys: Tensor, values: Tensor, params: AttentionParams) -> Tensor:
    """Attend in float64, one head at a time and all keys at once: ``query`` are one request's last positions."""
    query, keys, values = query.double(), keys.double(), values.double()
    count, heads, _ = query.shape
    length, kv_heads, _ = keys.shape
    distance = torch.arange(length) - torch.arange(length - count, length)[:, None]
    hidden = torch.zeros(count, length, dtype=torch.bool)
    if params.causal:
        hidden |= distance > 0
    if params.sliding_window is not None:
        hidden |= distance <= -params.sliding_window
    out = torch.empty(count, heads, values.shape[2], dtype=torch.float64)
    for head in range(heads):
        kv_head = head * kv_heads // heads
        scores = query[:, head] @ keys[:, kv_head].T * params.scale
        if params.softcap is not None:
            scores = params.softcap * torch.tanh(scores / params.softcap)
        if params.alibi is not None:
            scores = scores + params.alibi[head].double() * distance
        weights = scores.masked_fill(hidden, -torch.inf).exp()
        total = weights.sum(1, keepdim=True)
        if params.sinks is not None:
            total = total + params.sinks[head].double().exp()
        out[:, head] = weights / total @ values[:, kv_head]
    return out
