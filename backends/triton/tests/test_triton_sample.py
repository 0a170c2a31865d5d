"""The kernels' choice of tokens, in Triton's interpreter: the reference's, always."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pageport.backend.choice import Choice, ChoiceBatch
from pageport.backend.reference.choose import choose_tokens
from pageport.testing.conformance.sample_check import KINDS, SCALES, ChoiceRow, choice_batch, logits, select_rows
from pageport_triton import sample as sampling
from pageport_triton.op_configurations import OpConfiguration
from pageport_triton.sample import sample

from .small_ops import INTERPRETER, SMALL

ROWS = tuple(row for kind in KINDS.values() for row in kind)


def case(
    vocab_size: int, spread: str = "broad", rows: tuple[ChoiceRow, ...] = ROWS, seed: int = 0
) -> tuple[Tensor, ChoiceBatch]:
    generator = torch.Generator().manual_seed(seed + vocab_size)
    return logits(generator, len(rows), vocab_size, spread), choice_batch(generator, rows, vocab_size)


def assert_same(found: Choice, expected: Choice) -> None:
    assert torch.equal(found.token_ids, expected.token_ids)
    assert torch.equal(found.peaks, expected.peaks)


@pytest.mark.parametrize(("vocab_size", "spread", "dtype"), [(130, "broad", "float32"), (70, "tied", "bfloat16")])
def test_tokens_are_those_of_the_reference(vocab_size: int, spread: str, dtype: str) -> None:
    given, batch = case(vocab_size, spread)
    given = given.to(getattr(torch, dtype))
    assert_same(sample(given, batch, configuration=SMALL), choose_tokens(given, batch))


@pytest.mark.full
@pytest.mark.parametrize("spread", SCALES)
@pytest.mark.parametrize(
    ("vocab_size", "configuration"),
    [*((size, SMALL) for size in (1, 2, 5, 64, 65, 300)), *((size, INTERPRETER) for size in (1, 257, 5003, 40_000))],
)
def test_tokens_of_any_vocabulary_are_those_of_the_reference(
    vocab_size: int, configuration: OpConfiguration, spread: str
) -> None:
    given, batch = case(vocab_size, spread)
    assert_same(sample(given, batch, configuration=configuration), choose_tokens(given, batch))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4))
def test_hundreds_of_rows_have_the_tokens_of_the_reference(seed: int) -> None:
    given, batch = case(1031, "flat", ROWS * 20, seed)
    assert_same(sample(given, batch, configuration=INTERPRETER), choose_tokens(given, batch))


def test_rows_and_parameters_may_lie_apart_with_anything_between() -> None:
    rows = (ChoiceRow(0.0), ChoiceRow(), ChoiceRow(2.0), ChoiceRow(top_k=5))
    given, batch = case(77, rows=rows)
    wide = torch.full((len(given), 100), torch.nan)
    wide[:, 11:88] = given
    tensors = {name: value for name, value in vars(batch).items() if isinstance(value, Tensor)}
    apart = {name: torch.stack((value, value), dim=1)[:, 0] for name, value in tensors.items()}
    found = sample(wide[:, 11:88], replace(batch, **apart), configuration=INTERPRETER)
    assert_same(found, choose_tokens(given, batch))


def test_first_of_equal_peaks_is_the_likeliest() -> None:
    given = torch.zeros(3, 300)
    given[0, [130, 270]] = 1
    given[1, 299] = -0.0
    given[2] = -math.inf
    _, batch = case(300, rows=(ChoiceRow(0.0),) * 3)
    assert sample(given, batch, configuration=SMALL).token_ids.tolist() == [130, 0, 0]


def test_masked_tokens_are_never_chosen() -> None:
    given, batch = case(150, rows=(ChoiceRow(), ChoiceRow(3.0), ChoiceRow(top_k=140), ChoiceRow(top_p=0.99)) * 2)
    given[:, 1::2] = -math.inf
    given[::3, 2:] = -math.inf
    found = sample(given, batch, configuration=INTERPRETER)
    assert_same(found, choose_tokens(given, batch))
    assert not (found.token_ids % 2).any()


@pytest.mark.parametrize("place", [0, 299])
def test_peak_tells_nan_and_infinity_and_the_neighbours_are_left_alone(place: int) -> None:
    rows = (ChoiceRow(), ChoiceRow(0.0), ChoiceRow(top_p=0.9), ChoiceRow(top_k=3), ChoiceRow())
    given, batch = case(300, rows=rows)
    expected = choose_tokens(given, batch)
    given[0, place], given[1, place], given[2, place], given[3] = torch.nan, torch.nan, math.inf, -math.inf
    found = sample(given, batch, configuration=SMALL)
    assert found.peaks[:2].isnan().all()
    assert found.peaks[2:4].tolist() == [math.inf, -math.inf]
    assert ((found.token_ids >= 0) & (found.token_ids < 300)).all()
    assert found.token_ids[4] == expected.token_ids[4]


def test_sum_of_probabilities_near_top_p_is_left_to_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def choose(given: Tensor, batch: ChoiceBatch) -> Choice:
        asked.append(len(given))
        return choose_tokens(given, batch)

    monkeypatch.setattr(sampling, "choose_tokens", choose)
    monkeypatch.setattr(sampling, "PROBABILITY_MARGIN", 1.0)
    given, batch = case(60, "flat", (ChoiceRow(top_p=0.5), ChoiceRow(), ChoiceRow(top_k=30, top_p=0.9)) * 6)
    assert_same(sample(given, batch, configuration=INTERPRETER), choose_tokens(given, batch))
    assert 6 < asked[0] <= 12


def test_without_filters_nothing_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "choose_tokens", None)
    given, batch = case(60, rows=(ChoiceRow(), ChoiceRow(0.0), ChoiceRow(top_k=5)) * 3)
    sample(given, batch, configuration=INTERPRETER)


def test_no_rows_choose_nothing() -> None:
    given, batch = case(9)
    nothing = torch.zeros(0, dtype=torch.int64)
    found = sample(given[:0], select_rows(batch, nothing), configuration=INTERPRETER)
    assert found.token_ids.shape == found.peaks.shape == (0,)
