"""Every row drawn in the same way gives the tokens of the reference, which looks at each row's own needs."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pageport.backend.reference.choose import choose_tokens
from pageport.backend.reference.static_choose import ChoiceTensors, choose_statically
from pageport.testing.conformance.sample_check import SCALES, ChoiceRow, choice_batch, logits


def random_rows(generator, count):
    """Mix rows without and with a temperature, and with every subset of the filters."""

    def pick(*values):
        return values[generator.integers(len(values))]

    return [
        ChoiceRow(
            temperature=pick(0.0, 1e-5, 0.7, 1.0, 3.0),
            top_k=pick(0, 0, 1, 5, 40, 300),
            top_p=pick(1.0, 1.0, 0.95, 0.5, 1e-6),
            min_p=pick(0.0, 0.0, 0.02, 0.3, 1.0),
        )
        for _ in range(count)
    ]


def assert_same(given, batch):
    found, expected = choose_statically(given, ChoiceTensors.of(batch)), choose_tokens(given, batch)
    assert torch.equal(found.token_ids, expected.token_ids)
    assert torch.equal(found.peaks, expected.peaks)


@pytest.mark.parametrize("spread", SCALES)
@pytest.mark.parametrize("vocab_size", [1, 7, 259, 1031])
def test_any_mixture_of_filters_chooses_the_same_tokens(spread, vocab_size):
    rows = random_rows(np.random.default_rng(vocab_size), 200)
    generator = torch.Generator().manual_seed(vocab_size)
    assert_same(logits(generator, 200, vocab_size, spread), choice_batch(generator, rows, vocab_size))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(20))
def test_many_mixtures_over_a_real_vocabulary_choose_the_same_tokens(seed):
    generator, rows = torch.Generator().manual_seed(seed), random_rows(np.random.default_rng(seed), 40)
    for spread in SCALES:
        assert_same(logits(generator, 40, 32_003, spread), choice_batch(generator, rows, 32_003))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_of_half_precision_tie_often_and_choose_the_same_tokens(dtype):
    generator = torch.Generator().manual_seed(3)
    batch = choice_batch(generator, random_rows(np.random.default_rng(3), 300), 259)
    assert_same(logits(generator, 300, 259, "broad").to(dtype), batch)


def test_all_equal_logits_leave_the_first_tokens_to_top_k():
    rows = [ChoiceRow(top_k=3)] * 100
    batch = choice_batch(torch.Generator().manual_seed(0), rows, 64)
    given = torch.full((100, 64), 2.5)
    assert_same(given, batch)
    assert set(choose_statically(given, ChoiceTensors.of(batch)).token_ids.tolist()) == {0, 1, 2}


def test_a_row_keeps_its_token_beside_any_others():
    generator = torch.Generator().manual_seed(1)
    batch = choice_batch(generator, random_rows(np.random.default_rng(1), 64), 259)
    given, tensors = logits(generator, 64, 259, "broad"), ChoiceTensors.of(batch)
    together = choose_statically(given, tensors).token_ids
    for row in range(0, 64, 7):
        alone = ChoiceTensors(*(values[row : row + 1] for values in tensors))
        assert choose_statically(given[row : row + 1], alone).token_ids == together[row]


def test_rows_that_are_not_finite_tell_it_and_leave_the_others_alone():
    generator = torch.Generator().manual_seed(2)
    batch = choice_batch(generator, random_rows(np.random.default_rng(2), 40), 97)
    given = logits(generator, 40, 97, "broad")
    expected = choose_tokens(given, batch).token_ids
    given[::4, 50], given[1::4, 3] = torch.nan, torch.inf
    found = choose_statically(given, ChoiceTensors.of(batch))
    assert found.peaks[::4].isnan().all()
    assert found.peaks[1::4].isposinf().all()
    others = torch.arange(40) % 4 > 1
    assert torch.equal(found.token_ids[others], expected[others])
    assert ((found.token_ids >= 0) & (found.token_ids < 97)).all()


def test_greedy_tensors_ask_for_the_likeliest_token():
    given = torch.randn(5, 31, generator=torch.Generator().manual_seed(4))
    choice = choose_statically(given, ChoiceTensors.greedy(5, 31, torch.device("cpu")))
    assert torch.equal(choice.token_ids, given.argmax(-1))


def test_other_seeds_and_positions_draw_other_tokens():
    generator = torch.Generator().manual_seed(5)
    batch = choice_batch(generator, [ChoiceRow()] * 50, 1031)
    given = torch.zeros(50, 1031)
    drawn = {
        tuple(choose_statically(given, ChoiceTensors.of(changed)).token_ids.tolist())
        for changed in (
            batch,
            replace(batch, seeds=batch.seeds + 1),
            replace(batch, seeds=batch.seeds ^ (1 << 40)),
            replace(batch, positions=batch.positions + 1),
        )
    }
    assert len(drawn) == 4
