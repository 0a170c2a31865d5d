"""``Scene``: a pool filled by a device's ``write_kv`` as an engine does, read by its ``attention``.

Whatever no query may see holds poison, and outputs start as NaN. Queries are aimed at the keys where masks end and
blocks meet, so that a mask that is off by one moves the result by far more than the tolerance.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from pageport.backend.batch import AttentionBatch, AttentionMirror
from pageport.backend.device import Device
from pageport.backend.kv import AttentionParams
from pageport.testing.conformance.attention_case import AttentionCase, Row
from pageport.testing.conformance.kv_rounding import kept, kept_rotated, rotation_of_keys
from pageport.testing.conformance.oracle import DenseRequest, Floats, Formula, as_floats

# What holds NaN. After a NaN came out, a rerun with one of these at a time tells which was read.
UNUSED_BLOCK = "a block that no request has is read"
UNUSED_SLOT = "a slot of a request's last block behind its tokens is read"
LEFT_OF_WINDOW = "a block left of the sliding window, whose table entry is -1, is read"
OUTPUT = "it was never written, or read before it was written"
POISONS = (UNUSED_BLOCK, UNUSED_SLOT, LEFT_OF_WINDOW, OUTPUT)
GUARD_TOKENS = 3
SPARE_BLOCKS = 3
# A score of 10 outweighs some thousand keys of random scores.
AIM = 10.0
# In 1, of keys that are rotated: float32 sums of such numbers are exact in any order, so that a device and the oracle
# round the same one.
STEPS_OF_KEYS = 1024
LAYER = 1


@dataclass
class History:
    """A request's keys and values, of which the first ``written`` are in the pool."""

    table: list[int]
    key: Tensor  # [length, kv_heads, head_size], compute dtype, host
    value: Tensor
    dense_key: Floats  # as the pool keeps them
    dense_value: Floats
    written: int = 0
    freed: int = field(default=0)  # blocks left of the window


class RowResult(NamedTuple):
    """One row of a step: what came out, and what the oracle needs for what should have."""

    row: Row
    first_token: int
    actual: Floats
    request: DenseRequest | None  # None for padding
    num_freed_blocks: int  # left of the window, with table entries of -1


class Step(NamedTuple):
    """What attention made of one step."""

    rows: list[RowResult]
    guard_is_untouched: bool  # the memory behind the output
    num_decodes: int


class Scene:
    """A case on a device; a context manager that frees the pool."""

    def __init__(
        self, device: Device, case: AttentionCase, generator: np.random.Generator, poisons: Sequence[str] = POISONS
    ) -> None:
        self.case = case
        self._device = device
        self._generator = generator
        self._poisons = poisons
        self._dtype: torch.dtype = getattr(torch, case.compute_dtype)
        self._rotates_keys = rotation_of_keys(case.kv_dtype) in device.capabilities.features
        spec = case.kv_spec
        self.formula, self.params = self._draw_formula()
        device.check_attention(spec, case.num_heads, self.params)
        needed = [-(-row.length // case.block_size) for row in case.rows]
        ids = generator.permutation(sum(needed) + SPARE_BLOCKS).tolist()
        tables = [[ids.pop() for _ in range(blocks)] for blocks in needed]
        self._spare_blocks = ids
        self._pool = device.allocate_kv(spec, sum(needed) + SPARE_BLOCKS)
        try:
            self.histories = [
                self._draw_history(table, row.length) for table, row in zip(tables, case.rows, strict=True)
            ]
            self._poison_pool()
        except BaseException:
            device.free_kv(self._pool)
            raise

    def __enter__(self) -> "Scene":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._device.free_kv(self._pool)

    def write_history(self) -> None:
        """Write what comes before the case's own step, in pieces as steps before it would have."""
        for share in (0.4, 0.9, 1.0):
            rows = []
            for row, history in zip(self.case.rows, self.histories, strict=True):
                end = int(max(0, row.length - row.queries) * share)
                rows.append(Row(end, end - history.written))
            self._write(rows)

    def step(self, rows: Sequence[Row], num_decodes: int) -> Step:
        """Write and attend one step: ``rows[r].queries`` tokens of request r after those it has; 0: it is not there."""
        present = [index for index, row in enumerate(rows) if row.queries]
        self._free_left_of_window(rows)
        slots = self._write(rows)
        batch = self._batch([rows[index] for index in present], [self.histories[index] for index in present], slots)
        batch.num_decodes = num_decodes
        query = self._draw_query(rows)
        out = torch.full(
            (batch.num_tokens + GUARD_TOKENS, self.case.num_heads, self.case.kv_spec.value_head_size),
            torch.nan,
            dtype=self._dtype,
            device=self._device.torch_device,
        )
        if OUTPUT not in self._poisons:
            out[: batch.num_tokens] = 0
        given = self._on_device(query, is_strided=self.case.is_strided)
        batch.plan = self._device.plan(self.case.kv_spec, batch)
        self._device.attention(self._pool, LAYER, given, self.params, batch, out[: batch.num_tokens])
        self._device.synchronize()
        assert torch.equal(given.cpu(), query), "attention changes its query."
        return Step(list(self._results(rows, query, out)), bool(out[batch.num_tokens :].isnan().all()), num_decodes)

    def _results(self, rows: Sequence[Row], query: Tensor, out: Tensor) -> Iterator[RowResult]:
        actual, dense_query = as_floats(out), as_floats(query)
        end = 0
        for row, history in zip(rows, self.histories, strict=True):
            start, end = end, end + row.queries
            request = DenseRequest(
                query=dense_query[start:end],
                keys=history.dense_key[: history.written],
                values=history.dense_value[: history.written],
            )
            if row.queries:
                yield RowResult(row, start, actual[start:end], None if row.is_padding else request, history.freed)

    def _write(self, rows: Sequence[Row]) -> Tensor:
        """Write the next ``queries`` tokens of each request; return their slots."""
        spec = self.case.kv_spec
        keys = [torch.empty(0, spec.num_kv_heads, spec.head_size, dtype=self._dtype)]
        values = [torch.empty(0, spec.num_kv_heads, spec.value_head_size, dtype=self._dtype)]
        slots: list[int] = []
        for row, history in zip(rows, self.histories, strict=True):
            span = range(history.written, history.written + row.queries)
            if row.is_padding:
                keys.append(keys[0].new_full((row.queries, *keys[0].shape[1:]), torch.nan))
                values.append(values[0].new_full((row.queries, *values[0].shape[1:]), torch.nan))
                slots += row.queries * [-1]
                continue
            keys.append(history.key[span.start : span.stop])
            values.append(history.value[span.start : span.stop])
            slots += [self._slot(history, position) for position in span]
            history.written = span.stop
        mapping = torch.tensor(slots, dtype=torch.int64, device=self._device.torch_device)
        self._write_layers(torch.cat(keys), torch.cat(values), mapping)
        return mapping

    def _write_layers(self, key: Tensor, value: Tensor, slots: Tensor) -> None:
        strided = self.case.is_strided
        for layer in range(self.case.kv_spec.num_layers):
            # The other layer holds other numbers, so that reading it shows.
            sign = 1 if layer == LAYER else -1
            self._device.write_kv(
                self._pool,
                layer,
                self._on_device(sign * key, strided),
                self._on_device(sign * value, strided),
                slots,
                self.params,
            )

    def _slot(self, history: History, position: int) -> int:
        return history.table[position // self.case.block_size] * self.case.block_size + position % self.case.block_size

    def _batch(self, rows: Sequence[Row], histories: Sequence[History], slots: Tensor) -> AttentionBatch:
        """Lay out a step; the caller says how many rows are decodes."""
        size = self.case.block_size
        lengths = [0 if row.is_padding else history.written for row, history in zip(rows, histories, strict=True)]
        width = max((-(-length // size) for length in lengths), default=0) + self.case.extra_columns
        table = np.full((len(rows), width), -1, dtype=np.int32)
        for index, (length, history) in enumerate(zip(lengths, histories, strict=True)):
            used = -(-length // size)
            table[index, :used] = history.table[:used]
            table[index, : history.freed] = -1
            if index % 2:
                # What an earlier request left there.
                table[index, used:] = self._spare_blocks[0]
        counts = [row.queries for row in rows]
        starts = np.concatenate(([0], np.cumsum(counts, dtype=np.int64))).astype(np.int32)
        mirror = AttentionMirror(query_start_loc=starts, seq_lens=np.array(lengths, dtype=np.int32), block_table=table)
        # With more table than needed, the bounds are a bucket's.
        longest = width * size if self.case.extra_columns else max(lengths, default=0)
        where = self._device.torch_device
        return AttentionBatch(
            num_requests=len(rows),
            num_tokens=sum(counts),
            max_query_len=max(counts, default=0),
            max_seq_len=longest,
            num_decodes=0,
            query_start_loc=torch.from_numpy(starts).to(where),
            seq_lens=torch.from_numpy(mirror.seq_lens).to(where),
            block_table=torch.from_numpy(table).to(where),
            slot_mapping=slots,
            host=mirror,
        )

    def _free_left_of_window(self, rows: Sequence[Row]) -> None:
        """Give back the blocks that no query of the next step sees, as a sliding cache group does."""
        window = self.case.sliding_window
        if window is None or self.case.kind != "sliding":
            return
        for row, history in zip(rows, self.histories, strict=True):
            if row.queries and not row.is_padding:
                gone = max(0, history.written - window + 1) // self.case.block_size
                self._poison_blocks(history.table[history.freed : gone], LEFT_OF_WINDOW)
                history.freed = max(history.freed, gone)

    def _poison_pool(self) -> None:
        self._poison_blocks(self._spare_blocks, UNUSED_BLOCK)
        self._poison_blocks([block for history in self.histories for block in history.table], UNUSED_SLOT)
        # A device that keeps padding somewhere finds it there when it follows a table entry of -1.
        self._poison_slots([-1], LEFT_OF_WINDOW)

    def _poison_blocks(self, blocks: Sequence[int], poison: str) -> None:
        size = self.case.block_size
        self._poison_slots([block * size + offset for block in blocks for offset in range(size)], poison)

    def _poison_slots(self, slots: Sequence[int], poison: str) -> None:
        content = torch.nan if poison in self._poisons else 0.0
        spec, size = self.case.kv_spec, len(slots)
        key = torch.full((size, spec.num_kv_heads, spec.head_size), content, dtype=self._dtype)
        value = torch.full((size, spec.num_kv_heads, spec.value_head_size), content, dtype=self._dtype)
        self._write_layers(key, value, torch.tensor(slots, dtype=torch.int64, device=self._device.torch_device))

    def _draw_history(self, table: list[int], length: int) -> History:
        spec = self.case.kv_spec
        key = self._normal(length, spec.num_kv_heads, spec.head_size)
        value = self._normal(length, spec.num_kv_heads, spec.value_head_size)
        if self._rotates_keys:
            key = (key * STEPS_OF_KEYS).round() / STEPS_OF_KEYS
        kept_key = self._as_kept(key, self.params.k_scale, kept_rotated if self._rotates_keys else kept)
        return History(table, key, value, kept_key, self._as_kept(value, self.params.v_scale, kept))

    def _draw_query(self, rows: Sequence[Row]) -> Tensor:
        """Aim each query, by one of its heads, at a key where a mask ends or blocks meet."""
        case = self.case
        query = 0.3 * self._generator.standard_normal(
            (sum(row.queries for row in rows), case.num_heads, case.head_size)
        )
        group = case.num_heads // case.num_kv_heads
        token, turn = 0, 0
        for row, history in zip(rows, self.histories, strict=True):
            for index in range(row.queries):
                if not row.is_padding:
                    edges = self._edges(history.written - row.queries + index, history.written)
                    for head in range(case.num_heads):
                        key = history.dense_key[edges[(turn + head) % len(edges)], head // group]
                        aim = AIM if history.written > 256 else self._generator.uniform(3, AIM)
                        query[token, head] += aim / (case.scale * max(1e-3, key @ key)) * key
                    turn += case.num_heads
                token += 1
        return torch.from_numpy(query).to(self._dtype)

    def _edges(self, position: int, length: int) -> list[int]:
        """Return the keys around which the mask of the query at ``position`` ends, and first and last of blocks."""
        size, window = self.case.block_size, self.case.sliding_window
        block = position // size * size
        keys = [position, position + 1, block, block - 1, 0, size - 1, size]
        if window is not None:
            keys = [position - window + 1, position - window, *keys]
        return [key for key in dict.fromkeys(keys) if 0 <= key < length]

    def _draw_formula(self) -> tuple[Formula, AttentionParams]:
        case, where = self.case, self._device.torch_device
        sinks = alibi = None
        if case.has_sinks:
            sinks = self._generator.uniform(0, AIM, case.num_heads).astype(np.float32)
        if case.has_alibi:
            # The published slopes: 2 to the power of -8 h / heads.
            alibi = (2.0 ** (-8 * (np.arange(case.num_heads) + 1) / case.num_heads)).astype(np.float32)
        formula = Formula(
            scale=case.scale,
            causal=case.causal,
            sliding_window=case.sliding_window,
            softcap=case.softcap,
            sinks=None if sinks is None else sinks.astype(np.float64),
            alibi=None if alibi is None else alibi.astype(np.float64),
        )
        params = AttentionParams(
            scale=case.scale,
            causal=case.causal,
            sliding_window=case.sliding_window,
            softcap=case.softcap,
            sinks=None if sinks is None else torch.from_numpy(sinks).to(where),
            alibi=None if alibi is None else torch.from_numpy(alibi).to(where),
            k_scale=torch.tensor(0.03125, device=where) if case.has_scales else None,
            v_scale=torch.tensor(0.0625, device=where) if case.has_scales else None,
        )
        return formula, params

    def _as_kept(self, values: Tensor, scale: Tensor | None, keep: Callable[[Tensor, str, float], Floats]) -> Floats:
        """Return what the cache's dtype makes of ``values``."""
        return keep(values, self.case.kv_dtype, 1.0 if scale is None else float(scale))

    def _normal(self, *shape: int) -> Tensor:
        return torch.from_numpy(self._generator.standard_normal(shape)).to(self._dtype)

    def _on_device(self, values: Tensor, is_strided: bool) -> Tensor:
        """Upload [tokens, heads, size], perhaps as columns of a wider matrix whose other columns are NaN."""
        where = self._device.torch_device
        if not is_strided:
            return values.to(where)
        tokens, heads, size = values.shape
        wide = torch.full((tokens, heads * size + size), torch.nan, dtype=values.dtype, device=where)
        view = wide[:, : heads * size].view(tokens, heads, size)
        view.copy_(values)
        return view
