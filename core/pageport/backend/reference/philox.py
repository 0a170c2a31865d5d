"""Random numbers that depend on nothing but the seed, the output position and the token id.

Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) in integer torch ops: equal on
every device. Key: the 64-bit seed, low word first. Counter: (token id // 4, output position, 0, 0); the noise of a
token is lane ``token id % 4`` of the block.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

WORD = 0xFFFFFFFF
_MULTIPLIER_0, _MULTIPLIER_1 = 0xD2511F53, 0xCD9E8D57
_KEY_STEP_0, _KEY_STEP_1 = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


class Words(NamedTuple):
    """The four 32-bit words of a counter or of a block of random bits, each int64 below 2³²."""

    word_0: Int64[Tensor, "..."]
    word_1: Int64[Tensor, "..."]
    word_2: Int64[Tensor, "..."]
    word_3: Int64[Tensor, "..."]


def philox4x32(counter: Words, key_0: Int64[Tensor, "..."], key_1: Int64[Tensor, "..."]) -> Words:
    """Return four random words a counter; words broadcast, so that what rows share is computed once."""
    word_0, word_1, word_2, word_3 = counter
    for _ in range(_ROUNDS):
        # Products wrap modulo 2⁶⁴: the bits are right though the sign is not. Words 1 and 3 are left unmasked, as the
        # next round's xor is masked anyway.
        product_0 = word_0 * _MULTIPLIER_0
        product_1 = word_2 * _MULTIPLIER_1
        word_0 = _xor(_xor(product_1 >> 32, word_1), key_0).bitwise_and_(WORD)
        word_2 = _xor(_xor(product_0 >> 32, word_3), key_1).bitwise_and_(WORD)
        word_1, word_3 = product_1, product_0
        key_0 = (key_0 + _KEY_STEP_0) & WORD
        key_1 = (key_1 + _KEY_STEP_1) & WORD
    return Words(word_0, word_1 & WORD, word_2, word_3 & WORD)


def vocab_bits(
    seeds: Int64[Tensor, "rows"], positions: Int64[Tensor, "rows"], vocab_size: int
) -> Int64[Tensor, "rows vocab"]:
    """Return every token's 32 random bits."""
    blocks = torch.arange((vocab_size + 3) // 4, device=seeds.device)
    lanes = torch.empty((len(seeds), len(blocks), 4), dtype=torch.int64, device=seeds.device)
    for lane, word in enumerate(_block(seeds, positions, blocks[None, :])):
        lanes[:, :, lane] = word
    return lanes.view(len(seeds), -1)[:, :vocab_size]


def token_bits(
    seeds: Int64[Tensor, "rows"], positions: Int64[Tensor, "rows"], token_ids: Int64[Tensor, "rows tokens"]
) -> Int64[Tensor, "rows tokens"]:
    """Return some tokens' 32 random bits: the same that ``vocab_bits`` gives them."""
    words = _block(seeds, positions, token_ids >> 2)
    lane = token_ids & 3
    low = torch.where(lane == 0, words.word_0, words.word_1)
    high = torch.where(lane == 2, words.word_2, words.word_3)
    return torch.where(lane < 2, low, high)


def uniform(bits: Int64[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
    """Turn 32 random bits into the number (bits + 1/2) / 2³², exact in float64 and never 0 or 1."""
    return bits.double().add_(0.5).mul_(2.0**-32)


def gumbel(bits: Int64[Tensor, "*shape"]) -> Float64[Tensor, "*shape"]:
    """Turn 32 random bits into standard Gumbel noise; it lies between -3.2 and 22.9 and grows with the bits."""
    return uniform(bits).log_().neg_().log_().neg_()


def _xor(mine: Tensor, other: Tensor) -> Tensor:
    """Return the xor, in ``mine`` where it has the result's shape."""
    if all(size >= other_size for size, other_size in zip(mine.shape, other.shape, strict=True)):
        return mine.bitwise_xor_(other)
    return mine ^ other


def _block(seeds: Tensor, positions: Tensor, blocks: Tensor) -> Words:
    zero = torch.zeros((1, 1), dtype=torch.int64, device=seeds.device)
    counter = Words(blocks, (positions & WORD)[:, None], zero, zero)
    return philox4x32(counter, (seeds & WORD)[:, None], ((seeds >> 32) & WORD)[:, None])
