"""Attention with one fault each, on a plain attention that passes without one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pageport.backend import AttentionParams, Backend, Capabilities
from pageport.backend.batch import AttentionBatch
from pageport.backend.device import Device
from pageport.testing.conformance import Level
from pageport_cpu.device import CpuDevice
from pageport_cpu.plugin import CpuBackend


class PlainAttention(CpuDevice):
    """One request and one head at a time; each step is a method, so that a fault is one override."""

    variants: tuple[str, ...] = ("sliding_window", "softcap", "sinks", "alibi")

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            kv_dtypes=("float32", "bfloat16"),
            block_sizes=(4, 16),
            head_sizes=(16, 64),
            kv_kinds=("full", "sliding"),
            attention_variants=self.variants,
        )

    def attention(
        self, pool: Any, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
    ) -> None:
        size = pool.spec.block_size
        for row in range(batch.num_requests):
            tokens = slice(*batch.query_start_loc[row : row + 2].tolist())
            length = int(batch.seq_lens[row])
            if length == 0:
                self.fill_padding(out[tokens])
                continue
            places = torch.arange(length - (tokens.stop - tokens.start), length)
            first = max(0, int(places[0]) - params.sliding_window + 1) if params.sliding_window else 0
            keys = self.read_positions(first, length, size)
            blocks = batch.block_table[row].long()[keys // size]
            key, value = (stored[layer][blocks, :, keys % size].float() for stored in (pool.key, pool.value))
            hidden = self.hidden(places, keys, params, length)
            for head in range(query.shape[1]):
                kv_head = self.kv_head(head, query.shape[1], key.shape[1])
                scores = self.scores(query[tokens, head].float() @ key[:, kv_head].T, params)
                if params.alibi is not None:
                    scores = scores + params.alibi[head] * (keys - places[:, None])
                scores = scores.masked_fill(hidden, -torch.inf)
                if params.sinks is not None:
                    scores = torch.cat((scores, params.sinks[head].expand(len(scores), 1)), dim=1)
                weights = scores.softmax(dim=1)[:, : len(keys)]
                out[tokens, head] = (weights @ value[:, kv_head]).to(out.dtype)

    def fill_padding(self, out: Tensor) -> None:
        out.zero_()

    def read_positions(self, first: int, length: int, block_size: int) -> Tensor:
        return torch.arange(first, length)

    def hidden(self, places: Tensor, keys: Tensor, params: AttentionParams, length: int) -> Tensor:
        hidden = keys >= length
        if params.causal:
            hidden = hidden | (keys > places[:, None])
        if params.sliding_window:
            hidden = hidden | (keys <= places[:, None] - params.sliding_window)
        return hidden.expand(len(places), len(keys))

    def kv_head(self, head: int, num_heads: int, num_kv_heads: int) -> int:
        return head // (num_heads // num_kv_heads)

    def scores(self, products: Tensor, params: AttentionParams) -> Tensor:
        scores = products * params.scale
        return scores if params.softcap is None else params.softcap * (scores / params.softcap).tanh()


class PlainDecodes(PlainAttention):
    """Replaces decodes alone; the other half is inherited."""

    attention = Device.attention

    def decode_attention(
        self, pool: Any, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
    ) -> None:
        decodes = replace(batch, num_requests=batch.num_decodes)
        PlainAttention.attention(self, pool, layer, query, params, decodes, out)


class NeverMixes(PlainDecodes):
    """Takes decodes of several queries, and never decodes and prefills together; declares no variant."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(mixed_batches=False, decode_first=True, max_decode_query_len=3, head_sizes=(32,))

    def attention(
        self, pool: Any, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
    ) -> None:
        assert batch.num_decodes in (0, batch.num_requests)
        assert batch.query_start_loc.diff()[: batch.num_decodes].le(3).all()
        super().attention(pool, layer, query, params, batch, out)


class MissesBlockOfOneToken(PlainAttention):
    def read_positions(self, first: int, length: int, block_size: int) -> Tensor:
        num_blocks = max(1, -(-(length - 1) // block_size))
        return torch.arange(first, min(length, num_blocks * block_size))


class IgnoresWindow(PlainAttention):
    def read_positions(self, first: int, length: int, block_size: int) -> Tensor:
        return torch.arange(length)

    def hidden(self, places: Tensor, keys: Tensor, params: AttentionParams, length: int) -> Tensor:
        return (keys > places[:, None]).expand(len(places), len(keys))


class WindowOffByOne(PlainAttention):
    def hidden(self, places: Tensor, keys: Tensor, params: AttentionParams, length: int) -> Tensor:
        hidden = super().hidden(places, keys, params, length)
        return hidden | (keys <= places[:, None] - (params.sliding_window or 1 << 30) + 1) & (keys < places[:, None])


class ReadsLeftOfWindow(PlainAttention):
    def read_positions(self, first: int, length: int, block_size: int) -> Tensor:
        return torch.arange(length)


class ChunkMaskOffByOne(PlainAttention):
    def hidden(self, places: Tensor, keys: Tensor, params: AttentionParams, length: int) -> Tensor:
        is_chunk = len(places) > 1 and int(places[0]) > 0
        return super().hidden(places + 1 if is_chunk else places, keys, params, length)


class ForgetsCachedPrefix(PlainAttention):
    def hidden(self, places: Tensor, keys: Tensor, params: AttentionParams, length: int) -> Tensor:
        return super().hidden(places - places[0] if len(places) > 1 else places, keys, params, length)


class ReadsUnusedBlock(PlainAttention):
    def attention(
        self, pool: Any, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
    ) -> None:
        super().attention(pool, layer, query, params, batch, out)
        # What a kernel does that multiplies a whole table of blocks by probabilities of zero.
        out.add_(0 * pool.value[layer][:-1].float().sum())


class ReadsUnusedSlots(PlainAttention):
    def read_positions(self, first: int, length: int, block_size: int) -> Tensor:
        return torch.arange(first, -(-length // block_size) * block_size)


class WrongHeadMapping(PlainAttention):
    def kv_head(self, head: int, num_heads: int, num_kv_heads: int) -> int:
        return head % num_kv_heads


class CapsBeforeScaling(PlainAttention):
    def scores(self, products: Tensor, params: AttentionParams) -> Tensor:
        capped = products if params.softcap is None else params.softcap * (products / params.softcap).tanh()
        return capped * params.scale


class ForgetsScale(PlainAttention):
    def scores(self, products: Tensor, params: AttentionParams) -> Tensor:
        return products


class AcceptsUndeclaredVariant(PlainAttention):
    variants = ("sliding_window", "sinks", "alibi")

    def check_attention(self, spec: Any, num_heads: int, params: AttentionParams) -> None:
        pass


class LeavesPaddingUnwritten(PlainAttention):
    def fill_padding(self, out: Tensor) -> None:
        pass


class ReadsFirstLayer(PlainAttention):
    def attention(
        self, pool: Any, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
    ) -> None:
        super().attention(pool, 0, query, params, batch, out)


class ScalesQueryInPlace(PlainAttention):
    def attention(
        self, pool: Any, layer: int, query: Tensor, params: AttentionParams, batch: AttentionBatch, out: Tensor
    ) -> None:
        super().attention(pool, layer, query, params, batch, out)
        query.mul_(params.scale)


def backend_with(device: Callable[[], CpuDevice]) -> type[Backend]:
    """Return a backend whose device is of this class."""
    return type("WrongBackend", (CpuBackend,), {"open": lambda self, ordinal, options, rank=None: device()})


CORRECT = (
    ("plain attention", backend_with(PlainAttention), Level.ATTENTION),
    ("plain decodes", backend_with(PlainDecodes), Level.ATTENTION),
    ("never mixes", backend_with(NeverMixes), Level.ATTENTION),
    ("plain decodes, explained", backend_with(PlainDecodes), Level.OPS),
)
WRONG = tuple(
    (name, backend_with(device), Level.ATTENTION, words)
    for name, device, words in (
        ("off by one at a block edge", MissesBlockOfOneToken, "is a block edge off by one?"),
        ("ignored window", IgnoresWindow, "the sliding window is ignored"),
        ("window off by one", WindowOffByOne, "the sliding window is off by one: a query sees"),
        ("reads left of the window", ReadsLeftOfWindow, "table entry"),
        ("mask off by one in chunked prefill", ChunkMaskOffByOne, "a query sees the key behind its own position"),
        ("forgets the cached prefix", ForgetsCachedPrefix, "leaves out the cached prefix"),
        ("reads an unused block", ReadsUnusedBlock, "a block that no request has is read"),
        ("reads unused slots", ReadsUnusedSlots, "a slot of a request's last block behind its tokens is read"),
        ("wrong GQA mapping", WrongHeadMapping, "query head h reads KV head h % 2 instead of h // 2"),
        ("soft-cap before scale", CapsBeforeScaling, "the soft-cap comes before the scale"),
        ("forgets the scale", ForgetsScale, "scale is ignored"),
        (
            "accepts an undeclared variant",
            AcceptsUndeclaredVariant,
            "accepts softcap, which attention_variants does not",
        ),
        ("leaves padding unwritten", LeavesPaddingUnwritten, "it was never written"),
        ("reads another layer", ReadsFirstLayer, "keys and values of another layer"),
        ("changes its query", ScalesQueryInPlace, "attention changes its query"),
    )
)
