"""``SamplingBatch``: everything a sampler must know of one step besides the logits."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from jaxtyping import Float32, Int32, Int64
from torch import Tensor

from pageport.backend.choice import ChoiceBatch, Rows
from pageport.sampling.edits import RowEdits


class EditedRow(NamedTuple):
    """A row whose logits its request edits; the rest of the tuple finds its generated tokens in the history."""

    row: int
    edits: RowEdits
    history_row: int
    num_prompt_tokens: int
    length: int


@dataclass(frozen=True, kw_only=True)
class SamplingBatch(ChoiceBatch):
    """What choosing tokens needs, how logits are edited before that, and whose logprobs are wanted.

    The history of row k is ``history[history_rows[k], :lengths[k]]``: prompt, then generated tokens.
    """

    repetition_penalties: Float32[Tensor, "rows"]
    frequency_penalties: Float32[Tensor, "rows"]
    presence_penalties: Float32[Tensor, "rows"]
    lengths: Int64[Tensor, "rows"]
    num_prompt_tokens: Int64[Tensor, "rows"]
    history_rows: Int64[Tensor, "rows"]
    history: Int32[Tensor, "history_rows max_len"]
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
