"""The native choice of tokens against the reference: the same tokens, always."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pageport.backend.choice import Choice, ChoiceBatch
from pageport.backend.reference.choose import choose_tokens
from pageport.testing.conformance.sample_check import KINDS, SCALES, ChoiceRow, choice_batch, logits, select_rows
from pageport_cpu import sampling
from pageport_cpu.library import Library
from pageport_cpu.sampling import sample

ROWS = tuple(row for kind in KINDS.values() for row in kind)


Case = tuple[Tensor, ChoiceBatch]


def case(vocab_size: int, spread: str = "broad", rows: tuple[ChoiceRow, ...] = ROWS, seed: int = 0) -> Case:
    generator = torch.Generator().manual_seed(seed + vocab_size)
    return logits(generator, len(rows), vocab_size, spread), choice_batch(generator, rows, vocab_size)


def assert_same(found: Choice, expected: Choice) -> None:
    assert torch.equal(found.token_ids, expected.token_ids)
    assert torch.equal(found.peaks, expected.peaks)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of rows that the reference is asked to decide."""
    counts: list[int] = []

    def choose(given: Tensor, batch: ChoiceBatch) -> Choice:
        counts.append(len(given))
        return choose_tokens(given, batch)

    monkeypatch.setattr(sampling, "choose_tokens", choose)
    return counts


@pytest.mark.parametrize("spread", SCALES)
@pytest.mark.parametrize("vocab_size", [1, 2, 5, 63, 64, 65, 129, 1000, 5003])
def test_tokens_are_those_of_the_reference(library: Library, vocab_size: int, spread: str) -> None:
    given, batch = case(vocab_size, spread, ROWS * 4)
    assert_same(sample(library, given, batch), choose_tokens(given, batch))


@pytest.mark.parametrize("spread", SCALES)
def test_tokens_of_a_large_vocabulary_are_those_of_the_reference(library: Library, spread: str) -> None:
    given, batch = case(49_152, spread)
    assert_same(sample(library, given, batch), choose_tokens(given, batch))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("spread", SCALES)
@pytest.mark.parametrize("vocab_size", [300, 4099, 32_003, 128_256])
def test_thousands_of_rows_have_the_tokens_of_the_reference(
    library: Library, vocab_size: int, spread: str, seed: int
) -> None:
    given, batch = case(vocab_size, spread, ROWS * (40 if vocab_size < 10_000 else 2), seed)
    assert_same(sample(library, given, batch), choose_tokens(given, batch))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_of_16_bits_are_computed_in_float32(library: Library, dtype: torch.dtype) -> None:
    given, batch = case(1031, rows=ROWS * 4)
    assert_same(sample(library, given.to(dtype), batch), choose_tokens(given.to(dtype), batch))


def test_rows_may_lie_apart_with_anything_between(library: Library) -> None:
    given, batch = case(77)
    wide = torch.full((len(given), 100), torch.nan)
    wide[:, 11:88] = given
    assert_same(sample(library, wide[:, 11:88], batch), choose_tokens(given, batch))


def test_parameters_may_lie_apart(library: Library) -> None:
    given, batch = case(77)
    tensors = {name: value for name, value in vars(batch).items() if isinstance(value, Tensor)}
    apart = {name: torch.stack((value, value), dim=1)[:, 0] for name, value in tensors.items()}
    assert_same(sample(library, given, replace(batch, **apart)), choose_tokens(given, batch))


def test_masked_tokens_are_never_chosen(library: Library) -> None:
    given, batch = case(500, rows=ROWS * 8)
    given[:, 1::2] = -math.inf
    given[::7, 2:] = -math.inf
    found = sample(library, given, batch)
    assert_same(found, choose_tokens(given, batch))
    assert not (found.token_ids % 2).any()


def test_first_of_equal_peaks_is_the_likeliest(library: Library) -> None:
    given = torch.zeros(3, 1000)
    given[0, [300, 700]] = 1
    given[1, 999] = -0.0
    given[2] = -math.inf
    _, batch = case(1000, rows=(ChoiceRow(0.0),) * 3)
    assert sample(library, given, batch).token_ids.tolist() == [300, 0, 0]


@pytest.mark.parametrize("place", [0, 5, 255, 256, 299])
def test_peak_tells_nan_and_infinity_and_the_neighbours_are_left_alone(library: Library, place: int) -> None:
    rows = (ChoiceRow(), ChoiceRow(0.0), ChoiceRow(top_p=0.9), ChoiceRow(top_k=3), ChoiceRow())
    given, batch = case(300, rows=rows)
    expected = choose_tokens(given, batch)
    given[0, place], given[1, place], given[2, place], given[3] = torch.nan, torch.nan, math.inf, -math.inf
    found = sample(library, given, batch)
    assert found.peaks[:2].isnan().all()
    assert found.peaks[2:4].tolist() == [math.inf, -math.inf]
    assert ((found.token_ids >= 0) & (found.token_ids < 300)).all()
    assert found.token_ids[4] == expected.token_ids[4]


def test_row_gets_the_same_token_alone_and_among_others(library: Library) -> None:
    given, batch = case(1031, rows=ROWS * 3)
    together = sample(library, given, batch).token_ids
    library.set_num_threads(1)
    for row in range(0, len(given), 5):
        picked = torch.tensor([row])
        assert sample(library, given[picked], select_rows(batch, picked)).token_ids[0] == together[row]


def test_reference_is_hardly_ever_asked(library: Library, asked: list[int]) -> None:
    num_rows = 0
    for spread in SCALES:
        given, batch = case(1031, spread, ROWS * 20)
        sample(library, given, batch)
        num_rows += len(given)
    assert sum(asked) < 0.002 * num_rows


def test_what_a_rounding_decides_is_left_to_the_reference(
    library: Library, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "SCORE_MARGIN", 100.0)
    rows = (ChoiceRow(), ChoiceRow(0.0), ChoiceRow(top_k=1), ChoiceRow(2.0, min_p=0.1)) * 10
    given, batch = case(65, "flat", rows)
    assert_same(sample(library, given, batch), choose_tokens(given, batch))
    assert asked == [20]


def test_sum_of_probabilities_near_top_p_is_left_to_the_reference(
    library: Library, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "PROBABILITY_MARGIN", 1.0)
    rows = (ChoiceRow(top_p=0.5), ChoiceRow(0.0), ChoiceRow(), ChoiceRow(top_k=30, top_p=0.9)) * 20
    given, batch = case(500, "flat", rows)
    assert_same(sample(library, given, batch), choose_tokens(given, batch))
    assert 10 < asked[0] <= 40


def test_no_rows_choose_nothing(library: Library) -> None:
    given, batch = case(9)
    nothing = torch.zeros(0, dtype=torch.int64)
    assert sample(library, given[:0], select_rows(batch, nothing)).token_ids.shape == (0,)
