"""``SamplingBatch``: everything a sampler must know of one step besides the logits."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from jaxtyping import Float32, Int32, Int64
from torch import Tensor

from pageport.sampling.edits import RowEdits

Rows = npt.NDArray[np.int64]  # indexes of rows of the logits, ascending


class EditedRow(NamedTuple):
    """A row whose logits its request edits; the rest of the tuple finds its generated tokens in the history."""

    row: int
    edits: RowEdits
    history_row: int
    num_prompt_tokens: int
    length: int


@dataclass(frozen=True, kw_only=True)
class SamplingBatch:
    """Parameters by row of the logits, on the device; which rows need what, on the host.

    The history of row k is ``history[history_rows[k], :lengths[k]]``: prompt, then generated tokens. The token being
    sampled has output position ``positions[k]`` (0: the first after the prompt). A 64-bit seed is stored as the int64
    of the same bits.
    """

    temperatures: Float32[Tensor, "rows"]  # 0: greedy
    top_p: Float32[Tensor, "rows"]
    min_p: Float32[Tensor, "rows"]
    top_k: Int64[Tensor, "rows"]  # the vocabulary's size: off
    repetition_penalties: Float32[Tensor, "rows"]
    frequency_penalties: Float32[Tensor, "rows"]
    presence_penalties: Float32[Tensor, "rows"]
    seeds: Int64[Tensor, "rows"]
    positions: Int64[Tensor, "rows"]
    lengths: Int64[Tensor, "rows"]
    num_prompt_tokens: Int64[Tensor, "rows"]
    history_rows: Int64[Tensor, "rows"]
    history: Int32[Tensor, "history_rows max_len"]
    # Rows not greedy, without and with any of top_k, top_p, min_p.
    plain_rows: Rows
    filtered_rows: Rows
    penalised_rows: Rows
    max_penalised_length: int
    edited_rows: tuple[EditedRow, ...]
    # How many of the most likely tokens each of `logprob_rows` wants besides the chosen one.
    logprob_rows: Rows
    num_logprobs: npt.NDArray[np.int64]

    @property
    def changes_logits(self) -> bool:
        """Are any logits edited or penalised before a token is chosen?"""
        return bool(self.edited_rows) or bool(self.penalised_rows.size)
