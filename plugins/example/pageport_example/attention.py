"""Attention of requests with one query each, over keys and values that stay where they are."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from pageport.backend import AttentionParams, KVSpec
from pageport.backend.batch import AttentionBatch
from pageport.backend.device import Device

warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")


class Seen(NamedTuple):
    tokens: list[int]  # the decodes' places in the step
    counts: list[int]  # how many keys each decode sees
    rows: Tensor  # which rows of the cache these are, one query head after the other
    starts: Tensor  # where the rows of each query head begin, and the end


def find_seen(spec: KVSpec, batch: AttentionBatch, num_heads: int) -> Seen:
    starts, lengths = batch.query_start_loc.tolist(), batch.seq_lens.tolist()
    decodes = [i for i in range(batch.num_decodes) if starts[i] < starts[i + 1]]  # the others are padding
    counts = [lengths[i] for i in decodes]
    heads = torch.arange(num_heads)[:, None] // (num_heads // spec.num_kv_heads) * spec.block_size
    rows = []
    for i, count in zip(decodes, counts, strict=True):
        blocks = batch.block_table[i, : -(-count // spec.block_size), None].long()
        of_head_0 = blocks * spec.num_kv_heads * spec.block_size + torch.arange(spec.block_size)
        rows.append((of_head_0.flatten()[:count].sort().values + heads).flatten())
    ends = torch.tensor([0, *(count for count in counts for _ in range(num_heads))]).cumsum(0)
    return Seen([starts[i] for i in decodes], counts, torch.cat(rows), ends)


class Plan(NamedTuple):
    inherited: Any  # what the inherited prefill_attention goes by
    seen: Callable[[int], Seen]  # by the number of query heads; found when a layer first asks


class DecodeAttention(Device):
    def plan(self, spec: KVSpec, batch: AttentionBatch) -> Plan:
        return Plan(super().plan(spec, batch), cache(partial(find_seen, spec, batch)))

    def prefill_attention(
        self, pool: Any, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
    ) -> None:
        super().prefill_attention(pool, layer, query, params, replace(batch, plan=batch.plan.inherited), out)

    def decode_attention(
        self, pool: Any, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
    ) -> None:
        heads = query.shape[1]
        tokens, counts, rows, starts = batch.plan.seen(heads)
        keys, values = (stored[layer].flatten(0, 2) for stored in (pool.key, pool.value))
        queries = query[tokens].flatten(0, 1)
        pattern = torch.sparse_csr_tensor(
            starts, rows, torch.zeros(len(rows)), (len(queries), len(keys)), check_invariants=False
        )
        scores = torch.sparse.sampled_addmm(pattern, queries, keys.T, alpha=params.scale).values()
        parts = scores.split([heads * count for count in counts])
        weights = torch.cat([part.view(heads, -1).softmax(1).flatten() for part in parts])
        sums = embedding_bag(rows, values, starts, mode="sum", per_sample_weights=weights, include_last_offset=True)
        out[tokens] = sums.view(-1, heads, out.shape[2])
