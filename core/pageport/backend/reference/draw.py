"""Draw tokens: Gumbel-max (Gumbel 1954; arXiv:1411.0030) over what min_p, top_k and top_p leave.

Each token's score is its scaled logit plus its own noise and the best score wins; hence the result depends on nothing
else in the batch, nor on which tokens that cannot win were looked at.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float32, Float64, Int64
from torch import Tensor

from pageport.backend.reference.philox import gumbel, token_bits, vocab_bits
from pageport.backend.reference.ranking import Ranked, ranked

# Tokens looked at first, then if these do not hold all survivors; at last the whole vocabulary.
_FIRST_WIDTHS = (256, 8192)
# 255 of 256 tokens have at most these random bits, which make noise just below this.
_COMMON_BITS = 2**32 - 2**24
_COMMON_NOISE = 5.55


class Draws(NamedTuple):
    """What decides the noise of each row."""

    seeds: Int64[Tensor, "rows"]
    positions: Int64[Tensor, "rows"]


class Filters(NamedTuple):
    """Each row's filters; ``top_k`` is the vocabulary's size where it is off."""

    top_k: Int64[Tensor, "rows"]
    top_p: Float32[Tensor, "rows"]
    min_p: Float32[Tensor, "rows"]


class Kept(NamedTuple):
    """How many entries of a ranked prefix survive; exact unless the prefix was too short to tell."""

    counts: Int64[Tensor, "rows"]
    is_exact: Bool[Tensor, "rows"]


def draw_plain(
    scaled: Float32[Tensor, "rows vocab"], likeliest: Int64[Tensor, "rows"], draws: Draws
) -> Int64[Tensor, "rows"]:
    """Draw one token a row; ``scaled`` are logits over temperature, which are 0 at the ``likeliest`` tokens."""
    bits = vocab_bits(draws.seeds, draws.positions, scaled.shape[1])
    if not scaled.is_cpu:  # choosing whom to look at means waiting for the device
        return torch.argmax(gumbel(bits).add_(scaled), dim=-1)
    # The likeliest token's score is its noise. To beat it, a token needs rare noise or a scaled logit within reach.
    to_beat = gumbel(bits.gather(1, likeliest[:, None])).float()
    is_contender = (bits > _COMMON_BITS) | (scaled >= to_beat - _COMMON_NOISE)
    rows, token_ids = is_contender.nonzero(as_tuple=True)
    scores = gumbel(bits[rows, token_ids]).add_(scaled[rows, token_ids])
    best = torch.full((len(bits),), float("-inf"), dtype=torch.float64).scatter_reduce_(0, rows, scores, "amax")
    is_best = scores == best[rows]
    last = torch.full((len(bits),), scaled.shape[1] - 1)
    return last.scatter_reduce_(0, rows[is_best], token_ids[is_best], "amin")


def draw_filtered(scaled: Float32[Tensor, "rows vocab"], filters: Filters, draws: Draws) -> Int64[Tensor, "rows"]:
    """Draw one token a row among those its filters leave.

    ``scaled`` are logits over temperature with a largest value of 0. Survivors are a prefix of the ranking by value
    (lower id first among equals): tokens at least ``min_p`` times as likely as the first; of these the first
    ``top_k``; of these the fewest whose renormalised probabilities sum to ``top_p`` or more.
    """
    num_rows, vocab_size = scaled.shape
    probabilities = torch.softmax(scaled, dim=-1)
    tokens = torch.empty(num_rows, dtype=torch.int64, device=scaled.device)
    pending = torch.arange(num_rows, device=scaled.device)
    for width in _widths(filters.top_k, vocab_size):
        prefix = ranked(scaled if len(pending) == num_rows else scaled[pending], width)
        likelihoods = probabilities[pending[:, None], prefix.indexes]
        kept = kept_counts(prefix.values, likelihoods, Filters(*(values[pending] for values in filters)), vocab_size)
        if width == vocab_size:
            tokens[pending] = _draw_prefix(
                prefix, kept.counts, Draws(*(values[pending] for values in draws)), vocab_size
            )
            break
        done = pending[kept.is_exact]
        if done.numel():
            settled = Ranked(prefix.values[kept.is_exact], prefix.indexes[kept.is_exact])
            settled_draws = Draws(*(values[done] for values in draws))
            tokens[done] = _draw_prefix(settled, kept.counts[kept.is_exact], settled_draws, vocab_size)
        pending = pending[~kept.is_exact]
        if not pending.numel():
            break
    return tokens


def _widths(top_k: Tensor, vocab_size: int) -> list[int]:
    if not top_k.is_cpu:  # asking which rows are done means waiting for the device
        return [vocab_size]
    largest = int(top_k.max())
    return [*(min(width, largest) for width in _FIRST_WIDTHS if width < vocab_size), vocab_size]


def kept_counts(
    values: Float32[Tensor, "rows width"],
    probabilities: Float32[Tensor, "rows width"],
    filters: Filters,
    vocab_size: int,
) -> Kept:
    """Count the survivors among a ranking's first ``width`` entries."""
    width = values.shape[1]
    # A sum in order and in float64 is the same whatever the width.
    cumulative = torch.cumsum(probabilities, dim=-1, dtype=torch.float64)
    num_min_p = (values >= torch.log(filters.min_p)[:, None]).sum(dim=-1)
    # If even the last entry is likely enough, those behind it may be too.
    num_min_p = torch.where(num_min_p < width, num_min_p, vocab_size)
    counts = torch.minimum(num_min_p, filters.top_k).clamp_(min=1)
    is_cut = (filters.top_k < vocab_size) | (filters.min_p > 0)
    total = cumulative.gather(1, (counts.clamp(max=width) - 1)[:, None])
    total = torch.where(is_cut[:, None], total, 1.0)
    num_top_p = (cumulative < filters.top_p[:, None] * total).sum(dim=-1) + 1
    num_top_p = torch.where(filters.top_p < 1, num_top_p, vocab_size)
    is_exact = (counts <= width) | (~is_cut & (num_top_p <= width))
    return Kept(torch.minimum(counts, num_top_p), is_exact)


def _draw_prefix(prefix: Ranked, counts: Tensor, draws: Draws, vocab_size: int) -> Int64[Tensor, "rows"]:
    width = int(counts.max()) if counts.device.type == "cpu" else prefix.values.shape[1]
    token_ids = prefix.indexes[:, :width]
    scores = _noise(draws, token_ids, vocab_size).add_(prefix.values[:, :width])
    scores.masked_fill_(torch.arange(width, device=counts.device) >= counts[:, None], float("-inf"))
    is_best = scores == scores.amax(dim=-1, keepdim=True)
    # A row of NaN has no best; the sampler flags it, and any id in range will do.
    return torch.where(is_best, token_ids, token_ids.amax(dim=-1, keepdim=True)).amin(dim=-1)


def _noise(draws: Draws, token_ids: Tensor, vocab_size: int) -> Float64[Tensor, "rows tokens"]:
    # One block of random bits serves four tokens of the vocabulary.
    if 4 * token_ids.shape[1] < vocab_size:
        return gumbel(token_bits(draws.seeds, draws.positions, token_ids))
    return gumbel(vocab_bits(draws.seeds, draws.positions, vocab_size).gather(1, token_ids))
