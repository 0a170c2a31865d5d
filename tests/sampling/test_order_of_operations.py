"""The order of ``SamplingParams``' docstring, one neighbouring pair at a time, and greedy's place in it."""

from typing import Any

import torch

from pageport.sampling.params import SamplingParams


def greedy(**fields: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, **fields)


def test_bias_comes_after_the_allowed_tokens(run: Any) -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0]])
    output = run(logits, [greedy(allowed_token_ids=[0, 1], logit_bias={0: 3.0, 2: 100.0})])
    assert output.token_ids.tolist() == [0]


def test_processors_see_the_bias(run: Any) -> None:
    seen: list[list[float]] = []

    def record(output_token_ids: list[int], logits: Any) -> Any:
        seen.append(logits.tolist())
        return logits

    run(torch.tensor([[0.0, 1.0, 2.0]]), [greedy(logit_bias={0: 5.0}, logits_processors=[record])])
    assert seen == [[5.0, 1.0, 2.0]]


def test_penalties_come_after_the_bias(run: Any) -> None:
    # 4 + 4 = 8, halved: 4 < 5. Penalised first it would be 2 + 4 = 6.
    logits = torch.tensor([[4.0, 5.0]])
    output = run(logits, [greedy(logit_bias={0: 4.0}, repetition_penalty=2.0)], prompts=[[0]])
    assert output.token_ids.tolist() == [1]


def test_repetition_comes_before_presence(run: Any) -> None:
    # 4 / 2 - 1.5 = 0.5 < 1. The other way round: (4 - 1.5) / 2 = 1.25.
    params = greedy(repetition_penalty=2.0, presence_penalty=1.5)
    output = run(torch.tensor([[4.0, 1.0]]), [params], prompts=[[]], outputs=[[0]])
    assert output.token_ids.tolist() == [1]


def test_min_p_is_measured_after_temperature(run: Any, draw_many: Any) -> None:
    # exp(-2) = 0.14 is below min_p at temperature 1 and exp(-1) = 0.37 above it at temperature 2.
    logits = torch.tensor([2.0, 0.0])
    assert set(draw_many(logits, SamplingParams(min_p=0.3), 200).tolist()) == {0}
    assert set(draw_many(logits, SamplingParams(min_p=0.3, temperature=2.0), 200).tolist()) == {0, 1}


def test_top_p_is_measured_on_what_top_k_left(draw_many: Any) -> None:
    # 0.4 of all, but 0.5 of the two that top_k leaves: enough for top_p 0.5.
    logits = torch.tensor([0.4, 0.4, 0.2]).log()
    assert set(draw_many(logits, SamplingParams(top_p=0.45), 200).tolist()) == {0, 1}
    assert set(draw_many(logits, SamplingParams(top_p=0.45, top_k=2), 200).tolist()) == {0}


def test_greedy_rows_know_no_filters(run: Any) -> None:
    params = greedy(top_k=2, top_p=0.1, min_p=0.5)
    output = run(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), [params])
    assert output.token_ids.tolist() == [1]  # the lower of the equals


def test_top_k_1_is_greedy_also_when_the_best_are_equal(draw_many: Any) -> None:
    logits = torch.tensor([1.0, 3.0, 3.0, 3.0])
    assert set(draw_many(logits, SamplingParams(top_k=1), 100).tolist()) == {1}
