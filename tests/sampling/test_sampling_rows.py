"""Parameters kept by the runner's rows."""

import torch

from pageport.sampling.params import SamplingParams
from pageport.sampling.row import RowSampling
from pageport.sampling.rows import SamplingRows
from pageport.sampling.sampler import sample

HISTORY = torch.zeros((8, 16), dtype=torch.int32)


def rows_of(*params: SamplingParams) -> SamplingRows:
    rows = SamplingRows(8, 100, torch.device("cpu"))
    for row, given in enumerate(params):
        rows.set_row(row, RowSampling(params=given, seed=row), 0, 4)
    return rows


def test_rows_are_grouped_by_what_they_need() -> None:
    rows = rows_of(
        SamplingParams(temperature=0.0, top_k=5),
        SamplingParams(),
        SamplingParams(top_k=100),  # the whole vocabulary
        SamplingParams(top_p=0.9),
        SamplingParams(min_p=0.1, presence_penalty=1.0),
        SamplingParams(temperature=9e-6, repetition_penalty=1.1, logprobs=0),
    )
    batch = rows.gather([5, 4, 3, 2, 1, 0], [6] * 6, HISTORY)
    assert batch.plain_rows.tolist() == [3, 4]
    assert batch.filtered_rows.tolist() == [1, 2]
    assert batch.penalised_rows.tolist() == [0, 1]
    assert batch.logprob_rows.tolist() == [0]
    assert batch.temperatures.tolist() == [0, 1, 1, 1, 1, 0]
    assert batch.positions.tolist() == [2] * 6


def test_a_batch_of_greedy_rows_needs_nothing() -> None:
    batch = rows_of(SamplingParams(temperature=0.0), SamplingParams(temperature=0.0)).gather([0, 1], [4, 9], HISTORY)
    assert (batch.plain_rows.size, batch.filtered_rows.size) == (0, 0)
    assert not batch.changes_logits


def test_a_row_taken_over_keeps_nothing_of_its_former_owner() -> None:
    rows = rows_of(
        SamplingParams(
            temperature=0.0,
            logit_bias={7: 50.0},
            presence_penalty=1.0,
            top_k=3,
            logprobs=4,
        )
    )
    rows.set_row(0, RowSampling(params=SamplingParams(temperature=0.0), seed=9), 2, 1)
    batch = rows.gather([0], [5], HISTORY)
    assert not batch.changes_logits
    assert (batch.logprob_rows.size, batch.top_k.tolist(), batch.positions.tolist()) == (0, [100], [4])
    assert sample(torch.zeros((1, 100)), batch).token_ids.tolist() == [0]


def test_edits_are_only_for_sampled_rows() -> None:
    rows = rows_of(SamplingParams(logit_bias={1: 1.0}), SamplingParams())
    assert not rows.gather([1], [5], HISTORY).edited_rows
    assert [edited.row for edited in rows.gather([1, 0], [5, 6], HISTORY).edited_rows] == [1]
    rows.clear_row(0)
    assert not rows.gather([1, 0], [5, 6], HISTORY).edited_rows


def test_gathered_parameters_do_not_change_with_the_rows() -> None:
    rows = rows_of(SamplingParams(temperature=0.5))
    batch = rows.gather([0], [5], HISTORY)
    rows.set_row(0, RowSampling(params=SamplingParams(temperature=2.0, top_k=3), seed=77), 1, 3)
    assert (batch.temperatures.tolist(), batch.seeds.tolist(), batch.positions.tolist()) == ([0.5], [0], [1])


def test_seeds_of_any_sign_and_size_are_taken() -> None:
    rows = SamplingRows(3, 10, torch.device("cpu"))
    for row, seed in enumerate((-1, 2**64 - 1, 2**63)):
        rows.set_row(row, RowSampling(params=SamplingParams(), seed=seed), 0, 1)
    assert rows.gather([0, 1, 2], [1] * 3, HISTORY).seeds.tolist() == [-1, -1, -(2**63)]


def test_no_rows_to_sample_is_an_empty_result() -> None:
    output = sample(torch.zeros((0, 100)), rows_of().gather([], [], HISTORY))
    assert output.token_ids.tolist() == []
    assert output.errors() == {}
