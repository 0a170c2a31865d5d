"""Random numbers: the published vectors, an independent implementation, and what they depend on."""

import numpy as np
import numpy.typing as npt
import pytest
import torch

from pageport.backend.reference.philox import Words, gumbel, philox4x32, token_bits, uniform, vocab_bits
from pageport.sampling.seed import child_seed

U64 = npt.NDArray[np.uint64]


def philox_in_numpy(counter: list[U64], key: list[U64]) -> list[U64]:
    c, k = counter, key
    low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
    for step in range(10):
        if step:
            k = [(k[0] + np.uint64(0x9E3779B9)) & low, (k[1] + np.uint64(0xBB67AE85)) & low]
        a, b = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(b >> shift) ^ c[1] ^ k[0], b & low, (a >> shift) ^ c[3] ^ k[1], a & low]
    return c


# From kat_vectors of Random123 (philox 4x32, 10 rounds): counter, key, result.
VECTORS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


@pytest.mark.parametrize(("counter", "key", "result"), VECTORS)
def test_published_vectors(counter: str, key: str, result: str) -> None:
    words = Words(*(torch.tensor([int(word, 16)]) for word in counter.split()))
    key_0, key_1 = (torch.tensor([int(word, 16)]) for word in key.split())
    assert [f"{int(word):08x}" for word in philox4x32(words, key_0, key_1)] == result.split()


def test_broadcast_words_equal_an_independent_implementation() -> None:
    generator = np.random.default_rng(0)
    counter = [generator.integers(0, 2**32, shape, dtype=np.uint64) for shape in ((1, 9), (5, 1), (1, 1), (5, 9))]
    key = [generator.integers(0, 2**32, (5, 1), dtype=np.uint64) for _ in range(2)]
    words = Words(*(torch.from_numpy(word.astype(np.int64)) for word in counter))
    mine = philox4x32(words, *(torch.from_numpy(word.astype(np.int64)) for word in key))
    for word, expected in zip(mine, philox_in_numpy(counter, key), strict=True):
        np.testing.assert_array_equal(np.broadcast_to(word.numpy(), (5, 9)), expected.astype(np.int64))


def test_inputs_are_left_alone() -> None:
    words = Words(*(torch.full((2, 3), value) for value in (1, 2, 3, 4)))
    key = torch.full((2, 1), 7)
    first = philox4x32(words, key, key)
    second = philox4x32(words, key, key)
    assert [int(word[0, 0]) for word in words] == [1, 2, 3, 4]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_token_has_the_bits_of_its_seed_position_and_lane() -> None:
    seeds, positions = torch.tensor([3, -5]), torch.tensor([0, 77])
    bits = vocab_bits(seeds, positions, 11)
    for row, (seed, position) in enumerate([(3, 0), (2**64 - 5, 77)]):
        key = [np.array([seed & 0xFFFFFFFF], dtype=np.uint64), np.array([seed >> 32], dtype=np.uint64)]
        for token_id in range(11):
            counter = [np.array([word], dtype=np.uint64) for word in (token_id // 4, position, 0, 0)]
            assert int(bits[row, token_id]) == int(philox_in_numpy(counter, key)[token_id % 4][0])


def test_some_tokens_have_the_bits_of_the_whole_vocabulary() -> None:
    seeds, positions = torch.tensor([1, 2, 2**63 - 1]), torch.tensor([5, 5, 6])
    token_ids = torch.tensor([[0, 1, 2, 3], [49151, 7, 7, 1024], [4, 5, 6, 49150]])
    whole = vocab_bits(seeds, positions, 49152)
    assert torch.equal(token_bits(seeds, positions, token_ids), whole.gather(1, token_ids))


def test_uniform_is_never_0_or_1_and_noise_is_finite() -> None:
    bits = torch.tensor([0, 1, 2**31, 2**32 - 2, 2**32 - 1])
    assert uniform(bits)[0] == 2.0**-33
    assert uniform(bits)[-1] == 1 - 2.0**-33
    noise = gumbel(bits)
    assert bool((noise[1:] > noise[:-1]).all())
    assert noise[0] == pytest.approx(-3.1299, abs=1e-4)
    assert noise[-1] == pytest.approx(22.8739, abs=1e-4)


def test_uniform_numbers_are_uniform() -> None:
    values = uniform(vocab_bits(torch.tensor([9]), torch.tensor([3]), 100_000))[0]
    counts = torch.histc(values.float(), bins=64, min=0, max=1)
    chi_square = ((counts - 100_000 / 64) ** 2 / (100_000 / 64)).sum()
    assert chi_square < 104  # 63 degrees of freedom, 0.1 %


def test_choice_0_has_the_request_s_seed_and_others_their_own() -> None:
    """SMP-01: choices of one seed differ. The values are splitmix64's first outputs for state 0."""
    assert child_seed(42, 0) == 42
    assert child_seed(-1, 0) == 2**64 - 1
    assert [child_seed(0, index) for index in (1, 2)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
    assert len({child_seed(seed, index) for seed in range(50) for index in range(50)}) == 2500
