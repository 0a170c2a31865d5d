"""``AttentionPlan``: how a step's ragged rows become matrices of bounded size.

Requests with one query are grouped by length, so that the keys gathered for a group are little padded; a request with
several queries is a group of its own. A group's keys come in tiles, its queries in chunks. All of this, with its
indices and masks, is made once a step and serves every layer. Lengths come from the batch's host mirror, so they must
be exact, which they are unless rejected speculation is in flight.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pageport.backend.batch import AttentionBatch
from pageport.backend.kv import KVSpec

# float32 bytes of keys and values gathered at a time; with more they leave the caches before they are used.
GATHER_BYTES = 8 * 2**20
# Queries of one request taken at a time: enough for a matrix product, few enough to skip most of the causal half.
CHUNK_QUERIES = 64
# Share of the blocks gathered for a group that may be padding.
MAX_PADDING = 0.25

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Queries taken together: ``queries`` of each of the group's requests."""

    queries: int
    tokens: slice | Tensor  # their places in the step
    positions: Tensor  # int64 [requests, queries]


@dataclass(frozen=True, slots=True)
class Piece:
    """Scores of one chunk against keys ``first`` … ``last - 1`` of a tile."""

    chunk: int
    first: int
    last: int
    # True at keys a query does not see [requests, 1, queries, 1, last - masked_from]; every query sees those before.
    hidden: Tensor | None
    masked_from: int
    # Are these all the keys that the chunk sees?
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Tile:
    """``keys`` tokens, gathered by block, for each of the group's requests."""

    keys: int
    # Each request's and KV head's blocks, as rows of the pool viewed as [blocks * kv_heads, block_size * head_size].
    blocks: Tensor  # int64 [requests * kv_heads * blocks]
    # Gathered tokens that nobody sees and that may hold anything: their values are zeroed, since 0 * NaN is NaN.
    unused: Tensor | None  # int64, into [requests * kv_heads * keys]
    positions: Tensor  # int64 [requests, keys]
    pieces: list[Piece]


@dataclass(frozen=True, slots=True)
class Group:
    """``requests`` with equally many queries, and the keys they see."""

    requests: int
    chunks: list[Chunk]
    tiles: list[Tile]


@dataclass(frozen=True, slots=True)
class Share:
    """What one call of attention computes: some of the step's requests, under one mask."""

    groups: list[Group]
    padding: Tensor | None  # int64: tokens of padding rows, whose output is zeroed


@dataclass(slots=True)
class AttentionPlan:
    """One step's shares, each made when a layer first asks for it: usually one for decodes and one for prefills."""

    spec: KVSpec
    batch: AttentionBatch
    shares: dict[tuple[int, int, int | None, bool], Share] = field(default_factory=dict)
    scratch: dict[str, Tensor] = field(default_factory=dict)  # gathered keys and values, reused by all layers

    def share(self, rows: range, window: int | None, causal: bool) -> Share:
        """Return what layers with this window compute for the requests ``rows``."""
        key = (rows.start, rows.stop, window, causal)
        if key not in self.shares:
            groups = list(_groups(self.spec, self.batch, rows, window, causal))
            self.shares[key] = Share(groups, _padding(self.batch, rows))
        return self.shares[key]

    def gather(self, name: str, stored: Tensor, tile: Tile) -> Tensor:
        """Copy a tile's blocks of one layer of ``stored`` to float32 [requests * kv_heads, keys, size]."""
        size = stored.shape[-1]
        num_values = len(tile.blocks) * self.spec.block_size * size
        if name not in self.scratch or self.scratch[name].numel() < num_values:
            self.scratch[name] = torch.empty(num_values, dtype=stored.dtype, device=stored.device)
        gathered = self.scratch[name][:num_values].view(len(tile.blocks), -1)
        torch.index_select(stored.view(-1, self.spec.block_size * size), 0, tile.blocks, out=gathered)
        return gathered.float().view(-1, tile.keys, size)


def plan(spec: KVSpec, batch: AttentionBatch) -> AttentionPlan:
    """Plan one step of one cache group."""
    return AttentionPlan(spec, batch)


def _padding(batch: AttentionBatch, rows: range) -> Tensor | None:
    starts = batch.host.query_start_loc
    # Tokens behind the last request are padding too.
    end = batch.num_tokens if rows.stop == batch.num_requests else int(starts[rows.stop])
    is_padding = np.ones(end - starts[rows.start], dtype=bool)
    of_requests = np.repeat(batch.host.seq_lens[rows.start : rows.stop] == 0, np.diff(starts)[rows.start : rows.stop])
    is_padding[: len(of_requests)] = of_requests
    return _to_device(np.flatnonzero(is_padding) + starts[rows.start], batch) if is_padding.any() else None


def _groups(spec: KVSpec, batch: AttentionBatch, rows: range, window: int | None, causal: bool) -> Iterator[Group]:
    counts = np.diff(batch.host.query_start_loc)[rows.start : rows.stop]
    is_real = batch.host.seq_lens[rows.start : rows.stop] > 0
    yield from _single_query_groups(spec, batch, rows.start + np.flatnonzero(is_real & (counts == 1)), window)
    for request in rows.start + np.flatnonzero(is_real & (counts > 1)):
        yield _many_query_group(spec, batch, int(request), window, causal)


def _single_query_groups(
    spec: KVSpec, batch: AttentionBatch, requests: Integers, window: int | None
) -> Iterator[Group]:
    """Group requests from the longest down while a group's tile fits and is little padded."""
    lengths = batch.host.seq_lens[requests].astype(np.int64)
    lowest = np.maximum(0, lengths - window) if window else np.zeros_like(lengths)
    num_blocks = (lengths - 1) // spec.block_size - lowest // spec.block_size + 1
    order = np.argsort(-num_blocks, kind="stable")
    sizes = num_blocks[order].tolist()
    start = 0
    while start < len(sizes):
        longest = sizes[start]
        end, used = start + 1, longest
        while (
            end < len(sizes)
            and (end + 1 - start) * longest <= _blocks_per_tile(spec)
            and used + sizes[end] >= (1 - MAX_PADDING) * longest * (end + 1 - start)
        ):
            used += sizes[end]
            end += 1
        members = order[start:end]
        yield _single_query_group(spec, batch, requests[members], lengths[members], lowest[members], longest)
        start = end


def _single_query_group(
    spec: KVSpec, batch: AttentionBatch, requests: Integers, lengths: Integers, lowest: Integers, num_blocks: int
) -> Group:
    first_block = lowest // spec.block_size
    # Only a request alone in its group may need several tiles.
    step = _blocks_per_tile(spec)
    tiles = []
    for start in range(0, num_blocks, step):
        columns = first_block[:, None] + np.arange(start, min(start + step, num_blocks))
        # Shorter requests are padded with their own last block, which is there to be read.
        readable = np.minimum(columns, ((lengths - 1) // spec.block_size)[:, None])
        block_ids = batch.host.block_table[requests[:, None], readable]
        positions = (columns[:, :, None] * spec.block_size + np.arange(spec.block_size)).reshape(len(requests), -1)
        hidden = (positions >= lengths[:, None]) | (positions < lowest[:, None])
        keys = positions.shape[1]
        mask = _to_device(hidden[:, None, None, None], batch) if hidden.any() else None
        piece = Piece(0, 0, keys, mask, 0, is_whole=step >= num_blocks)
        tiles.append(_tile(spec, batch, block_ids, positions, hidden, [piece]))
    tokens = _to_device(batch.host.query_start_loc[requests].astype(np.int64), batch)
    return Group(len(requests), [Chunk(1, tokens, _to_device(lengths[:, None] - 1, batch))], tiles)


def _many_query_group(spec: KVSpec, batch: AttentionBatch, request: int, window: int | None, causal: bool) -> Group:
    first_token, end_token = batch.host.query_start_loc[request : request + 2].tolist()
    length = int(batch.host.seq_lens[request])
    shift = length - end_token  # position = token + shift
    spans, chunks = [], []
    for start in range(first_token, end_token, CHUNK_QUERIES):
        tokens = slice(start, min(start + CHUNK_QUERIES, end_token))
        span = range(tokens.start + shift, tokens.stop + shift)
        spans.append(span)
        chunks.append(Chunk(len(span), tokens, _to_device(np.arange(span.start, span.stop)[None], batch)))
    tiles = []
    size = spec.block_size
    lowest = max(0, spans[0].start - window + 1) if window else 0
    step = _blocks_per_tile(spec) * size
    for start in range(lowest // size * size, length, step):
        tile_span = range(start, min(start + step, length))
        pieces = [_piece(index, span, tile_span, length, window, causal, batch) for index, span in enumerate(spans)]
        block_ids = batch.host.block_table[request, start // size : -(-tile_span.stop // size)][None]
        positions = np.arange(start, start + block_ids.size * size)[None]
        # Pieces end where this request's tokens end, so that nothing unused is read.
        tiles.append(_tile(spec, batch, block_ids, positions, None, [piece for piece in pieces if piece]))
    return Group(1, chunks, tiles)


def _piece(
    chunk: int, queries: range, tile: range, length: int, window: int | None, causal: bool, batch: AttentionBatch
) -> Piece | None:
    """Cut from the tile what the queries at positions ``queries`` see, or return None."""
    low = max(0, queries.start - window + 1) if window else 0
    high = queries.stop if causal else length
    first, last = max(low, tile.start), min(high, tile.stop)
    if first >= last:
        return None
    masked_from = min(max(first, queries.start + 1), last) if causal else last
    if window and first <= queries[-1] - window:
        masked_from = first
    keys, places = np.arange(masked_from, last), np.arange(queries.start, queries.stop)[:, None]
    hidden = keys > places if causal else np.zeros((len(queries), len(keys)), dtype=bool)
    if window:
        hidden = hidden | (keys <= places - window)
    return Piece(
        chunk=chunk,
        first=first - tile.start,
        last=last - tile.start,
        hidden=_to_device(hidden[None, None, :, None], batch) if hidden.any() else None,
        masked_from=masked_from - first,
        is_whole=first == low and last == high,
    )


def _tile(
    spec: KVSpec,
    batch: AttentionBatch,
    block_ids: npt.NDArray[np.int32],
    positions: Integers,
    unseen: npt.NDArray[np.bool_] | None,
    pieces: list[Piece],
) -> Tile:
    keys = positions.shape[1]
    heads = np.arange(spec.num_kv_heads)[:, None]
    blocks = block_ids[:, None].astype(np.int64) * spec.num_kv_heads + heads
    unused = None
    if unseen is not None and unseen.any():
        owner, key = np.nonzero(unseen)
        unused = _to_device(((owner * spec.num_kv_heads + heads) * keys + key).ravel(), batch)
    return Tile(keys, _to_device(blocks.ravel(), batch), unused, _to_device(positions, batch), pieces)


def _blocks_per_tile(spec: KVSpec) -> int:
    values = spec.block_size * spec.num_kv_heads * (spec.head_size + spec.value_head_size)
    return max(1, GATHER_BYTES // (4 * values))


def _to_device(array: npt.NDArray[np.generic], batch: AttentionBatch) -> Tensor:
    return torch.from_numpy(array).to(batch.seq_lens.device)
