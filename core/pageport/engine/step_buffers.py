"""``StepBuffers``: one step's ragged batch, built with numpy into buffers that keep their addresses."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from pageport.backend.batch import AttentionBatch, AttentionMirror
from pageport.cache.layout import GroupLayout
from pageport.engine.block_tables import BlockTables
from pageport.models.inputs import ModelInputs
from pageport.scheduling.batch import Batch


class StagedTensor:
    """A device tensor and the host array it is filled from; on a host device both are the same memory.

    Elsewhere ``num_stages`` host arrays take turns, since an upload may still be running when the next step is built.
    """

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, num_stages: int) -> None:
        self.tensor = torch.zeros(shape, dtype=dtype, device=device)
        shared = device.type == "cpu"
        stages = [self.tensor] if shared else [torch.zeros(shape, dtype=dtype).pin_memory() for _ in range(num_stages)]
        self._stages = [(stage, stage.numpy()) for stage in stages]
        self._shared = shared
        self._turn = 0

    def next(self) -> npt.NDArray[Any]:
        """Return the host array to fill for this step."""
        self._turn = (self._turn + 1) % len(self._stages)
        return self._stages[self._turn][1]

    def upload(self, *extent: int) -> Tensor:
        """Return the leading ``extent`` of the device tensor, filled from the host array.

        Whole rows are copied: what has gaps would first be gathered in memory that a device cannot read by itself, and
        the host would wait for it.
        """
        if not self._shared:
            rows = slice(extent[0])
            self.tensor[rows].copy_(self._stages[self._turn][0][rows], non_blocking=True)
        return self.tensor[tuple(slice(n) for n in extent)]


# What a captured step must not read: lengths are in the batch's tensors.
NO_MIRROR = AttentionMirror(
    query_start_loc=np.empty(0, np.int32), seq_lens=np.empty(0, np.int32), block_table=np.empty((0, 0), np.int32)
)


class DecodeStep(NamedTuple):
    """The places where any step of so many requests, with one token each, puts what the model reads.

    Block tables are as wide, and ``max_seq_len`` is as large, as they can become.
    """

    inputs: ModelInputs
    batches: list[AttentionBatch]  # one per cache group


class Step(NamedTuple):
    """One step, ready for the model."""

    inputs: ModelInputs
    batches: list[AttentionBatch]  # one per cache group
    query_start_loc: npt.NDArray[np.int32]  # [entries + 1], host
    seq_lens: npt.NDArray[np.int32]  # [entries], host


class StepBuffers:
    """Block tables by persistent row on the host, and the tensors of the current step on the device."""

    def __init__(
        self,
        groups: Sequence[GroupLayout],
        *,
        max_num_seqs: int,
        max_tokens: int,
        max_model_len: int,
        device: torch.device,
        num_stages: int,
    ) -> None:
        def staged(shape: tuple[int, ...], dtype: torch.dtype) -> StagedTensor:
            return StagedTensor(shape, dtype, device, num_stages)

        self._block_sizes = [group.block_size for group in groups]
        tables = BlockTables(self._block_sizes, max_num_seqs=max_num_seqs, max_model_len=max_model_len)
        self.update_tables = tables.update  # applies the scheduler's changes
        self._tables = tables.groups
        self._token_ids = torch.zeros(max_tokens, dtype=torch.int64, device=device)
        self._token_rows = staged((max_tokens,), torch.int64)
        self._positions = staged((max_tokens,), torch.int64)
        self._query_start_loc = staged((max_num_seqs + 1,), torch.int32)
        self._seq_lens = staged((max_num_seqs,), torch.int32)
        self._wanted = staged((max_tokens,), torch.int64)
        self._slots = [staged((max_tokens,), torch.int64) for _ in groups]
        self._step_tables = [staged(table.shape, torch.int32) for table in self._tables]
        self._arange = np.arange(max_tokens, dtype=np.int64)
        self._max_seq_len = max_model_len + 1

    def decode_step(self, num_requests: int) -> DecodeStep:
        """Return where every step of ``num_requests`` decodes lies, for a graph to read from."""
        shared: dict[str, Any] = {
            "num_requests": num_requests,
            "num_tokens": num_requests,
            "max_query_len": 1,
            "max_seq_len": self._max_seq_len,
            "num_decodes": num_requests,
            "query_start_loc": self._query_start_loc.tensor[: num_requests + 1],
            "seq_lens": self._seq_lens.tensor[:num_requests],
            "host": NO_MIRROR,
        }
        batches = [
            AttentionBatch(**shared, block_table=table.tensor[:num_requests], slot_mapping=slots.tensor[:num_requests])
            for table, slots in zip(self._step_tables, self._slots, strict=True)
        ]
        inputs = ModelInputs(token_ids=self._token_ids[:num_requests], positions=self._positions.tensor[:num_requests])
        return DecodeStep(inputs, batches)

    def wanted(self, tokens: npt.NDArray[np.int64]) -> Tensor:
        """Put tokens of the step where every step has those whose hidden states are wanted."""
        self._wanted.next()[: len(tokens)] = tokens
        return self._wanted.upload(len(tokens))

    def build(self, batch: Batch, history: Tensor, num_padding: int = 0) -> Step:
        """Lay out ``batch``; token ids are taken from ``history`` [rows, positions] on the device.

        Args:
            num_padding: padding rows behind the others, which must then be decodes.
        """
        # A padding row has one query at position 0 of row 0, whose token is as good as any.
        rows = np.array(batch.rows + [0] * num_padding, np.int64)
        starts = np.array(batch.starts + [0] * num_padding, np.int64)
        counts = np.array(batch.counts + [1] * num_padding, np.int64)
        num_requests, num_tokens = len(rows), int(counts.sum())
        first_padding = num_requests - num_padding

        query_start_loc = self._query_start_loc.next()
        query_start_loc[0] = 0
        np.cumsum(counts, out=query_start_loc[1 : num_requests + 1])
        seq_lens = self._seq_lens.next()
        np.add(starts, counts, out=seq_lens[:num_requests], casting="unsafe")
        seq_lens[first_padding:num_requests] = 0
        token_rows, positions = self._token_rows.next(), self._positions.next()
        if num_tokens == num_requests:
            token_rows[:num_tokens], positions[:num_tokens] = rows, starts
        else:
            token_rows[:num_tokens] = np.repeat(rows, counts)
            first_minus_offset = np.repeat(starts - query_start_loc[:num_requests], counts)
            np.add(self._arange[:num_tokens], first_minus_offset, out=positions[:num_tokens])

        device_positions = self._positions.upload(num_tokens)
        token_ids = self._token_ids[:num_tokens]
        if history.is_cpu:  # numpy's indexing costs a step less
            token_ids.numpy()[:] = history.numpy()[token_rows[:num_tokens], positions[:num_tokens]]
        else:
            token_ids.copy_(history[self._token_rows.upload(num_tokens), device_positions])
        max_seq_len = int(seq_lens[:num_requests].max(initial=0))
        shared: dict[str, Any] = {
            "num_requests": num_requests,
            "num_tokens": num_tokens,
            "max_query_len": int(counts.max(initial=0)),
            "max_seq_len": max_seq_len,
            "num_decodes": batch.num_decodes + num_padding,
            "query_start_loc": self._query_start_loc.upload(num_requests + 1),
            "seq_lens": self._seq_lens.upload(num_requests),
        }
        batches = []
        for group, block_size in enumerate(self._block_sizes):
            table, num_blocks = self._tables[group], -(-max_seq_len // block_size)
            step_table, slots = self._step_tables[group].next(), self._slots[group].next()
            step_table[:num_requests, :num_blocks] = table[rows, :num_blocks]
            blocks, offsets = np.divmod(positions[:num_tokens], block_size)
            slots[:num_tokens] = table[token_rows[:num_tokens], blocks].astype(np.int64) * block_size + offsets
            slots[num_tokens - num_padding : num_tokens] = -1
            batches.append(
                AttentionBatch(
                    **shared,
                    block_table=self._step_tables[group].upload(num_requests, num_blocks),
                    slot_mapping=self._slots[group].upload(num_tokens),
                    host=AttentionMirror(
                        query_start_loc=query_start_loc[: num_requests + 1],
                        seq_lens=seq_lens[:num_requests],
                        block_table=step_table[:num_requests, :num_blocks],
                    ),
                )
            )
        inputs = ModelInputs(token_ids=token_ids, positions=device_positions)
        return Step(inputs, batches, query_start_loc[: num_requests + 1], seq_lens[:num_requests])
