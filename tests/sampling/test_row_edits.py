"""Allowed tokens, bad words, min_tokens, bias and processors of single rows."""

from typing import Any

import pytest
import torch

from pageport.sampling.params import SamplingParams
from pageport.sampling.row import RowSampling

LOGITS = torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0]])


def row(stop: tuple[int, ...] = (), bad_words: tuple[tuple[int, ...], ...] = (), **fields: Any) -> RowSampling:
    params = SamplingParams(temperature=0.0, **fields)
    return RowSampling(params=params, seed=0, stop_token_ids=frozenset(stop), bad_words_token_ids=bad_words)


def test_stop_tokens_wait_for_min_tokens(run: Any) -> None:
    chosen = [
        run(LOGITS, [row(stop=(4, 3), min_tokens=2)], outputs=[output]).token_ids.item()
        for output in ([], [0], [0, 0], [0, 0, 0])
    ]
    assert chosen == [2, 2, 4, 4]


@pytest.mark.parametrize(
    ("words", "output", "expected"),
    [
        (((4,),), [], 3),
        (((1, 4),), [], 4),
        (((1, 4),), [1], 3),
        (((1, 4),), [1, 2], 4),
        (((1, 4), (2, 4)), [1], 3),
        (((2, 4), (1, 4)), [1], 3),
        (((1, 2, 4), (3,)), [0, 1, 2], 2),
        (((2, 2, 2, 4),), [2, 2], 4),
        (((),), [1], 4),
        (((9,), (1, 9)), [1], 4),  # the model has no token 9
    ],
)
def test_bad_words_lose_their_last_token(run: Any, words: Any, output: list[int], expected: int) -> None:
    assert run(LOGITS, [row(bad_words=words)], outputs=[output]).token_ids.tolist() == [expected]


def test_bad_words_do_not_begin_in_the_prompt(run: Any) -> None:
    assert run(LOGITS, [row(bad_words=((1, 4),))], prompts=[[1]]).token_ids.tolist() == [4]


def test_minus_infinity_from_an_edit_survives_bias(run: Any) -> None:
    params = row(stop=(4,), min_tokens=1, logit_bias={4: 100.0})
    assert run(LOGITS, [params]).token_ids.tolist() == [3]


def test_a_request_with_everything_masked_ends_with_a_reason(run: Any) -> None:
    rows = [row(allowed_token_ids=[4], stop=(4,), min_tokens=3), row()]
    output = run(LOGITS.repeat(2, 1), rows)
    assert output.errors().keys() == {0}
    assert output.errors()[0].startswith("No token can be sampled")
    assert output.token_ids.tolist() == [0, 4]


def test_processor_gets_the_generated_tokens_and_its_result_counts(run: Any) -> None:
    def force_next(output_token_ids: list[int], logits: Any) -> Any:
        logits[:] = float("-inf")
        logits[output_token_ids[-1] + 1] = 0.0
        return logits

    output = run(LOGITS, [row(logits_processors=[force_next])], prompts=[[4, 4]], outputs=[[0, 1]])
    assert output.token_ids.tolist() == [2]


def test_what_a_processor_keeps_is_not_written_to(run: Any) -> None:
    kept: list[torch.Tensor] = []
    params = row(logits_processors=[lambda ids, logits: kept.append(logits) or logits * 2], presence_penalty=2.0)
    run(LOGITS, [params], outputs=[[1, 2]])
    assert kept[0].tolist() == LOGITS[0].tolist()


def fail(output_token_ids: list[int], logits: Any) -> Any:
    raise KeyError("lost")


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (fail, "logits processor fail raised KeyError: 'lost'"),
        (lambda ids, logits: None, "returned NoneType; it must return float logits of shape [5]."),
        (lambda ids, logits: logits[:3], "returned torch.float32 [3]; it must"),
        (lambda ids, logits: logits.long(), "returned torch.int64 [5]; it must"),
    ],
)
def test_a_failing_processor_ends_only_its_own_request(run: Any, processor: Any, message: str) -> None:
    output = run(LOGITS.repeat(3, 1), [row(), row(logits_processors=[processor]), row(allowed_token_ids=[2])])
    assert output.errors().keys() == {1}
    assert message in output.errors()[1]
    assert output.token_ids[[0, 2]].tolist() == [4, 2]


def test_a_processor_that_returns_nan_is_an_error_of_its_row(run: Any) -> None:
    spoil = row(logits_processors=[lambda ids, logits: logits * float("nan")])
    output = run(LOGITS.repeat(2, 1), [spoil, row()])
    assert output.errors().keys() == {0}
    assert output.token_ids.tolist() == [0, 4]
