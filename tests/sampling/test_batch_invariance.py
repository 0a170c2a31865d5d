"""A row's result is bitwise the same alone, in any batch, at any place and in any row of the runner."""

from typing import Any

import pytest
import torch

from pageport.sampling.logprobs import token_logprobs
from pageport.sampling.params import SamplingParams
from pageport.sampling.row import RowSampling

VARIED = [
    {"temperature": 0.0},
    {},
    {"temperature": 0.7},
    {"top_p": 0.9},
    {"top_p": 0.5, "temperature": 1.4},
    {"top_k": 40},
    {"top_k": 5, "top_p": 0.8, "min_p": 0.01},
    {"min_p": 0.1},
    {"repetition_penalty": 1.3, "temperature": 0.0},
    {"frequency_penalty": 0.8, "presence_penalty": 0.3, "top_p": 0.95},
    {"logit_bias": {3: 5.0}},
    {"allowed_token_ids": list(range(100)), "top_p": 0.9},
    {"logprobs": 5},
    {"logprobs": -1, "top_k": 7},
    {"temperature": 3.0, "top_p": 0.99},
]


@pytest.fixture(params=[1, 2, 3])
def num_threads(request: pytest.FixtureRequest) -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.usefixtures("num_threads")
@pytest.mark.parametrize("vocab_size", [2_003, 40_961])
def test_rows_alone_equal_rows_together(run: Any, random_logits: Any, vocab_size: int) -> None:
    """SMP-04, and the seed's promise: neither neighbours nor the place in the batch matter."""
    count = len(VARIED)
    logits = random_logits(count, vocab_size)
    rows = [RowSampling(params=SamplingParams(**fields), seed=100 + k) for k, fields in enumerate(VARIED)]
    prompts, outputs = [[k, 5, 9] for k in range(count)], [[k + 1] * (k % 5) for k in range(count)]
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1)).tolist()
    together = run(
        logits[order],
        [rows[k] for k in order],
        prompts=[prompts[k] for k in order],
        outputs=[outputs[k] for k in order],
        at=[(3 * k + 1) % 64 for k in order],
    )
    scored = token_logprobs(together.logprobs, count)
    for place, k in enumerate(order):
        alone = run(logits[k : k + 1], [rows[k]], prompts=[prompts[k]], outputs=[outputs[k]])
        assert alone.token_ids[0] == together.token_ids[place], VARIED[k]
        assert token_logprobs(alone.logprobs, 1)[0] == scored[place]


def test_a_row_of_a_wide_batch_equals_itself_alone(run: Any, random_logits: Any) -> None:
    logits = random_logits(40, 1_001)  # rows start at odd addresses
    params = [SamplingParams(temperature=0.9, seed=k, **({"top_p": 0.9} if k % 2 else {})) for k in range(40)]
    together = run(logits, params).token_ids.tolist()
    alone = [run(logits[k : k + 1].clone(), [params[k]]).token_ids.item() for k in range(40)]
    assert together == alone


def test_preemption_and_resumption_change_nothing(run: Any, random_logits: Any) -> None:
    """The output position is counted from the prompt's end, however the row came to hold its tokens."""
    logits, params = random_logits(1, 500), SamplingParams(seed=3)
    before = run(logits, [params], prompts=[[1, 2]], outputs=[[7, 8, 9]], at=[0])
    after = run(logits, [params], prompts=[[1, 2]], outputs=[[7, 8, 9]], at=[37])
    elsewhere = [run(logits, [params], prompts=[[1]], outputs=[[0] * n]).token_ids.item() for n in range(20)]
    assert before.token_ids.tolist() == after.token_ids.tolist() == [elsewhere[3]]
    assert len(set(elsewhere)) > 5


def test_nan_logits_are_an_error_of_their_row_only(run: Any, random_logits: Any) -> None:
    """NUM-01: NaN never becomes token 0 silently, and other rows are untouched."""
    rows = [SamplingParams(**fields) for fields in VARIED[:8] for _ in range(2)]
    clean = random_logits(16, 300)
    expected = run(clean, rows).token_ids[1::2]
    for poison in (float("nan"), float("inf"), float("-inf")):
        logits = clean.clone()
        logits[::2] = poison
        output = run(logits, rows)
        assert output.peaks.isfinite().tolist() == [False, True] * 8
        assert output.errors().keys() == set(range(0, 16, 2))
        assert "not finite" in output.errors()[0]
        assert torch.equal(output.token_ids[1::2], expected)


def test_one_nan_among_good_logits_is_noticed(run: Any, random_logits: Any) -> None:
    logits = random_logits(5, 300)
    logits[:, 123] = float("nan")
    rows = [SamplingParams(**VARIED[k]) for k in (0, 1, 3, 8)] + [SamplingParams(allowed_token_ids=[1, 2])]
    output = run(logits, rows)
    assert output.errors().keys() == {0, 1, 2, 3, 4}
    assert all(0 <= token_id < 300 for token_id in output.token_ids.tolist())  # which the next step can look up
