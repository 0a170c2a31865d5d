"""``SamplingRows``: the parameters of every persistent row, gathered once a step."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Int32
from torch import Tensor

from pageport.backend.choice import Rows
from pageport.sampling.batch import EditedRow, SamplingBatch
from pageport.sampling.edits import RowEdits
from pageport.sampling.row import RowSampling
from pageport.sampling.seed import child_seed

# Below, a temperature means greedy.
MIN_TEMPERATURE = 1e-5
_FLOATS = ("temperatures", "top_p", "min_p", "repetition_penalties", "frequency_penalties", "presence_penalties")


class SamplingRows:
    """numpy arrays by the runner's rows, so that a step costs a few array operations whatever the batch's size.

    What few requests want (edited logits) is kept aside by row and looked at only when such a row is sampled.
    """

    def __init__(self, num_rows: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._floats = np.zeros((num_rows, len(_FLOATS)), dtype=np.float32)
        self._seeds = np.zeros(num_rows, dtype=np.int64)
        self._top_k = np.zeros(num_rows, dtype=np.int64)
        self._num_prompt_tokens = np.zeros(num_rows, dtype=np.int64)
        self._is_greedy = np.ones(num_rows, dtype=np.bool_)
        self._is_filtered = np.zeros(num_rows, dtype=np.bool_)
        self._is_penalised = np.zeros(num_rows, dtype=np.bool_)
        self._wants_logprobs = np.zeros(num_rows, dtype=np.bool_)
        self._num_logprobs = np.zeros(num_rows, dtype=np.int64)
        self._edits: dict[int, RowEdits] = {}
        # Rows of which a step need know nothing but that their likeliest token is wanted; batches of these by size.
        self._is_plain = np.ones(num_rows, dtype=np.bool_)
        self._plain_batches: dict[int, SamplingBatch] = {}

    def set_row(self, row: int, sampling: RowSampling, index: int, num_prompt_tokens: int) -> None:
        """Replace everything kept of ``row``; ``index`` is the choice index within the request."""
        params = sampling.params
        self._seeds[row] = np.uint64(child_seed(sampling.seed, index)).astype(np.int64)
        self._num_prompt_tokens[row] = num_prompt_tokens
        is_greedy = params.temperature < MIN_TEMPERATURE or sampling.num_candidates > 0
        top_k = min(params.top_k, self._vocab_size) if params.top_k > 0 else self._vocab_size
        self._is_greedy[row] = is_greedy
        self._top_k[row] = top_k
        self._floats[row] = (
            0.0 if is_greedy else params.temperature,
            params.top_p,
            params.min_p,
            params.repetition_penalty,
            params.frequency_penalty,
            params.presence_penalty,
        )
        self._is_filtered[row] = top_k < self._vocab_size or params.top_p < 1 or params.min_p > 0
        self._is_penalised[row] = (
            params.repetition_penalty != 1 or params.frequency_penalty != 0 or params.presence_penalty != 0
        )
        self._set_logprobs(row, sampling)
        self.clear_row(row)
        if RowEdits.are_needed(sampling):
            self._edits[row] = RowEdits(sampling, self._vocab_size, self._device)
        self._is_plain[row] = (
            is_greedy and not self._is_penalised[row] and not self._wants_logprobs[row] and row not in self._edits
        )

    def clear_row(self, row: int) -> None:
        """Drop what a finished sequence's row holds on the device."""
        self._edits.pop(row, None)

    def gather(
        self, sample_rows: Sequence[int], lengths: Sequence[int], history: Int32[Tensor, "history_rows max_len"]
    ) -> SamplingBatch:
        """Collect the parameters of one step.

        Args:
            lengths: prompt and generated tokens each row has before the token being sampled.
            history: the tokens themselves, ``history[row, :length]``; kept, not copied.

        Returns:
            For rows that are all greedy and unedited, one batch for each number of them, with the lengths and places
            of the first ones: nothing looks at these.
        """
        rows = np.asarray(sample_rows, dtype=np.int64)
        if self._is_plain[rows].all():
            if len(rows) not in self._plain_batches:
                self._plain_batches[len(rows)] = self._gather(rows, sample_rows, lengths, history)
            return self._plain_batches[len(rows)]
        return self._gather(rows, sample_rows, lengths, history)

    def _gather(
        self, rows: Rows, sample_rows: Sequence[int], lengths: Sequence[int], history: Int32[Tensor, "rows max_len"]
    ) -> SamplingBatch:
        row_lengths = np.asarray(lengths, dtype=np.int64)
        num_prompt_tokens = self._num_prompt_tokens[rows]
        integers = np.stack(
            (
                self._top_k[rows],
                self._seeds[rows],
                row_lengths - num_prompt_tokens,
                row_lengths,
                num_prompt_tokens,
                rows,
            )
        )
        floats = self._to_device(np.ascontiguousarray(self._floats[rows].T))
        top_k, seeds, positions, lengths_there, num_prompt_there, history_rows = self._to_device(integers)
        is_random, is_filtered = ~self._is_greedy[rows], self._is_filtered[rows]
        penalised_rows = np.flatnonzero(self._is_penalised[rows])
        logprob_rows = np.flatnonzero(self._wants_logprobs[rows])
        return SamplingBatch(
            **dict(zip(_FLOATS, floats, strict=True)),
            top_k=top_k,
            seeds=seeds,
            positions=positions,
            lengths=lengths_there,
            num_prompt_tokens=num_prompt_there,
            history_rows=history_rows,
            history=history,
            plain_rows=np.flatnonzero(is_random & ~is_filtered),
            filtered_rows=np.flatnonzero(is_random & is_filtered),
            penalised_rows=penalised_rows,
            max_penalised_length=int(row_lengths[penalised_rows].max(initial=0)),
            edited_rows=self._edited_rows(sample_rows, lengths),
            logprob_rows=logprob_rows,
            num_logprobs=self._num_logprobs[rows[logprob_rows]],
        )

    def _set_logprobs(self, row: int, sampling: RowSampling) -> None:
        wanted = sampling.num_candidates or sampling.params.logprobs
        self._wants_logprobs[row] = wanted is not None
        self._num_logprobs[row] = self._vocab_size if wanted == -1 else min(wanted or 0, self._vocab_size)

    def _edited_rows(self, sample_rows: Sequence[int], lengths: Sequence[int]) -> tuple[EditedRow, ...]:
        if not self._edits or self._edits.keys().isdisjoint(sample_rows):
            return ()
        return tuple(
            EditedRow(k, self._edits[row], row, int(self._num_prompt_tokens[row]), lengths[k])
            for k, row in enumerate(sample_rows)
            if row in self._edits
        )

    def _to_device(self, values: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(values).to(self._device, non_blocking=True)
