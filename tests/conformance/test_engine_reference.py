"""How answers are judged: rounding is excused and counted, anything else is named by its place."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from pageport.testing.conformance.engine_reference import EngineReference, Judge, Tally
from pageport.testing.conformance.tiny_engine import Answer, TinyModel

EXPECTED = torch.tensor([[-1.0, -2.0, -3.0], [-2.0, -1.0, -1.0001]])


class KnownReference(EngineReference):
    def __init__(self) -> None:
        pass

    def logprobs(self, prompt: Sequence[int], tokens: Sequence[int]) -> Tensor:
        return EXPECTED[: len(tokens)]


def compare(*tokens: int, logprobs: Tensor = EXPECTED, is_greedy: bool = True, error: str | None = None) -> Tally:
    answer = Answer(prompt=list(range(40)), is_greedy=is_greedy, tokens=list(tokens), error=error)
    answer.logprobs = list(logprobs[: len(tokens)])
    judge = Judge(reference=KnownReference(), dtype="float32", block_size=16, where="tiny", hint="why not?")
    return judge.compare([answer])


def test_the_likeliest_tokens_are_right() -> None:
    assert compare(0, 1) == Tally(tokens=2, near_ties=0)


def test_a_near_tie_that_went_the_other_way_is_counted() -> None:
    assert compare(0, 2) == Tally(tokens=2, near_ties=1)


def test_a_token_clearly_less_likely_is_wrong_unless_it_was_drawn() -> None:
    with pytest.raises(AssertionError, match="chooses token 0 at position 40"):
        compare(0, 0)
    assert compare(0, 0, is_greedy=False) == Tally(tokens=2, near_ties=0)


def test_a_wrong_logprob_is_named_by_its_place_in_the_cache() -> None:
    wrong = EXPECTED + torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.01, 0.0]])
    with pytest.raises(AssertionError, match=r"differs at position 40 \(offset 8 of block 2\): token 1 .* why not\?"):
        compare(0, 1, logprobs=wrong)


def test_a_logprob_that_is_nan_is_wrong() -> None:
    with pytest.raises(AssertionError, match="differs at position 39"):
        compare(0, logprobs=torch.full((1, 3), torch.nan))


def test_an_answer_that_ended_with_an_error_is_wrong() -> None:
    with pytest.raises(AssertionError, match="ended with an error"):
        compare(0, error="out of order")


def test_the_reference_scores_a_history_as_one_prefill() -> None:
    reference = EngineReference(TinyModel())
    whole = reference.logprobs([5, 6, 7], [8, 9, 10, 11])
    assert whole.shape == (4, 259)
    assert torch.allclose(whole.exp().sum(dim=-1), torch.ones(4))
    assert torch.allclose(reference.logprobs([5, 6, 7], [8]), whole[:1], atol=1e-5)
