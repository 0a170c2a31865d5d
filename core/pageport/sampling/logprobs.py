"""Log-probabilities of chosen and of the most likely tokens, and their form on the host."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from pageport.backend.choice import Rows
from pageport.backend.reference.ranking import ranked
from pageport.sampling.batch import SamplingBatch
from pageport.scheduling.batch import TokenLogprobs

# Rows whose log-softmax over the vocabulary is in memory at a time, for prompts.
_PROMPT_CHUNK = 64


@dataclass(frozen=True, kw_only=True)
class LogprobTensors:
    """Logprobs of some rows of a batch, on the device: column 0 is the chosen token, then the most likely ones.

    Row i belongs to sample ``rows[i]``, which wants ``num_logprobs[i]`` of the most likely ones.
    """

    rows: Rows
    num_logprobs: Sequence[int]
    token_ids: Int64[Tensor, "n columns"]
    logprobs: Float32[Tensor, "n columns"]
    ranks: Int64[Tensor, "n columns"]

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """What is on the device."""
        return self.token_ids, self.logprobs, self.ranks

    def with_tensors(self, token_ids: Tensor, logprobs: Tensor, ranks: Tensor) -> "LogprobTensors":
        """Return the same with copies of ``tensors``."""
        return replace(self, token_ids=token_ids, logprobs=logprobs, ranks=ranks)

    def to_host(self) -> list[TokenLogprobs]:
        """Wait for the device and return one entry a row: the chosen token, then as many likely ones as it wants.

        The chosen token is listed again where it is among the likely ones.
        """
        columns = zip(self.token_ids.tolist(), self.logprobs.tolist(), self.ranks.tolist(), strict=True)
        return [
            TokenLogprobs(token_ids[: count + 1], logprobs[: count + 1], ranks[: count + 1])
            for (token_ids, logprobs, ranks), count in zip(columns, self.num_logprobs, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class RawLogprobs:
    """log-softmax of some rows, of the logits as the model gave them: nothing that sampling does shows here."""

    rows: Rows
    num_logprobs: Sequence[int]
    values: Float32[Tensor, "n vocab"]

    def of_chosen(self, token_ids: Int64[Tensor, "rows"]) -> LogprobTensors:
        """Look up the chosen token of every row of the batch and the most likely ones."""
        chosen = token_ids[torch.from_numpy(self.rows).to(token_ids.device)]
        return _logprob_tensors(self.values, chosen, self.rows, self.num_logprobs)


def raw_logprobs(logits: Float[Tensor, "rows vocab"], batch: SamplingBatch) -> tuple[RawLogprobs, ...]:
    """Take a snapshot for the rows that want logprobs; those that want all tokens apart from those that want few."""
    if not batch.logprob_rows.size:
        return ()
    is_whole = batch.num_logprobs >= logits.shape[1]
    snapshots = []
    for selected in (np.flatnonzero(~is_whole), np.flatnonzero(is_whole)):
        if selected.size:
            rows = batch.logprob_rows[selected]
            values = torch.log_softmax(logits[torch.from_numpy(rows).to(logits.device)].float(), dim=-1)
            snapshots.append(RawLogprobs(rows=rows, num_logprobs=batch.num_logprobs[selected].tolist(), values=values))
    return tuple(snapshots)


def prompt_logprobs(
    logits: Float[Tensor, "positions vocab"], next_token_ids: Sequence[int], num_logprobs: int
) -> list[TokenLogprobs]:
    """Score the token that follows each position; ``num_logprobs`` -1 lists the whole vocabulary."""
    count = logits.shape[1] if num_logprobs == -1 else min(num_logprobs, logits.shape[1])
    chosen = torch.tensor(next_token_ids, dtype=torch.int64, device=logits.device)
    entries: list[TokenLogprobs] = []
    for start in range(0, len(next_token_ids), _PROMPT_CHUNK):
        part = slice(start, min(start + _PROMPT_CHUNK, len(next_token_ids)))
        rows = np.arange(part.start, part.stop)
        values = torch.log_softmax(logits[part].float(), dim=-1)
        entries += _logprob_tensors(values, chosen[part], rows, [count] * len(rows)).to_host()
    return entries


def token_logprobs(tensors: Sequence[LogprobTensors], num_rows: int) -> list[TokenLogprobs | None]:
    """Put logprobs in the order of the batch's rows; None for a row that wants none."""
    by_row: list[TokenLogprobs | None] = [None] * num_rows
    for group in tensors:
        for row, entry in zip(group.rows.tolist(), group.to_host(), strict=True):
            by_row[row] = entry
    return by_row


def _logprob_tensors(values: Tensor, chosen: Tensor, rows: Rows, num_logprobs: Sequence[int]) -> LogprobTensors:
    chosen_logprobs = values.gather(1, chosen[:, None])
    chosen_ranks = (values > chosen_logprobs).sum(dim=-1, keepdim=True) + 1
    top = ranked(values, max(num_logprobs))
    return LogprobTensors(
        rows=rows,
        num_logprobs=num_logprobs,
        token_ids=torch.cat((chosen[:, None], top.indexes), dim=1),
        logprobs=torch.cat((chosen_logprobs, top.values), dim=1),
        ranks=torch.cat((chosen_ranks, _ranks(top.values)), dim=1),
    )


def _ranks(ordered: Tensor) -> Tensor:
    """Return 1 + the number of larger values in each row of descending values."""
    place = torch.arange(1, ordered.shape[1] + 1, device=ordered.device).expand(ordered.shape)
    is_lower = torch.ones_like(ordered, dtype=torch.bool)
    is_lower[:, 1:] = ordered[:, 1:] < ordered[:, :-1]
    return torch.where(is_lower, place, 1).cummax(dim=-1).values
