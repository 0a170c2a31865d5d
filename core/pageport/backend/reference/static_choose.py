"""Choose one token a row as ``choose_tokens`` does, every row in the same way: no shape depends on who asks what."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Float32, Int64
from torch import Tensor

from pageport.backend.choice import Choice, ChoiceBatch
from pageport.backend.reference.draw import Filters, kept_counts
from pageport.backend.reference.philox import gumbel, vocab_bits


class ChoiceTensors(NamedTuple):
    """The tensors of a ``ChoiceBatch``."""

    temperatures: Float32[Tensor, "rows"]
    top_p: Float32[Tensor, "rows"]
    min_p: Float32[Tensor, "rows"]
    top_k: Int64[Tensor, "rows"]
    seeds: Int64[Tensor, "rows"]
    positions: Int64[Tensor, "rows"]

    @classmethod
    def of(cls, batch: ChoiceBatch) -> "ChoiceTensors":
        return cls(batch.temperatures, batch.top_p, batch.min_p, batch.top_k, batch.seeds, batch.positions)

    @classmethod
    def greedy(cls, num_rows: int, vocab_size: int, device: torch.device) -> "ChoiceTensors":
        """Return what asks for the likeliest token of each row."""
        # Each a tensor of its own: a graph traced over one that stands for two would take it for both ever after.
        return cls(
            temperatures=torch.zeros(num_rows, device=device),
            top_p=torch.ones(num_rows, device=device),
            min_p=torch.zeros(num_rows, device=device),
            top_k=torch.full((num_rows,), vocab_size, dtype=torch.int64, device=device),
            seeds=torch.zeros(num_rows, dtype=torch.int64, device=device),
            positions=torch.zeros(num_rows, dtype=torch.int64, device=device),
        )


def choose_statically(logits: Float[Tensor, "rows vocab"], choice: ChoiceTensors) -> Choice:
    """Take the likeliest token, the first of equals, or draw one: by a ranking of the whole vocabulary."""
    logits = logits.float()
    vocab_size = logits.shape[1]
    peaks, likeliest = logits.max(dim=-1)
    temperatures = torch.where(choice.temperatures > 0, choice.temperatures, 1.0)
    scaled = (logits - peaks[:, None]) / temperatures[:, None]
    values, token_ids = torch.sort(scaled, dim=-1, descending=True, stable=True)
    likelihoods = torch.softmax(scaled, dim=-1).gather(1, token_ids)
    kept = kept_counts(values, likelihoods, Filters(choice.top_k, choice.top_p, choice.min_p), vocab_size)
    noise = gumbel(vocab_bits(choice.seeds, choice.positions, vocab_size)).gather(1, token_ids)
    is_kept = torch.arange(vocab_size, device=logits.device) < kept.counts[:, None]
    scores = torch.where(is_kept, noise + values, float("-inf"))
    is_best = scores == scores.amax(dim=-1, keepdim=True)
    # A row of NaN has no best; any id of the vocabulary will do there.
    drawn = torch.where(is_best, token_ids, vocab_size - 1).amin(dim=-1)
    return Choice(torch.where(choice.temperatures > 0, drawn, likeliest), peaks)
