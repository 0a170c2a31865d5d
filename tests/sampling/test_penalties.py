"""Which tokens each penalty sees, from the first generated token on."""

from typing import Any

import pytest
import torch

from pageport.sampling.params import SamplingParams
from pageport.sampling.penalties import apply_penalties
from pageport.sampling.row import RowSampling
from pageport.sampling.rows import SamplingRows


@pytest.mark.parametrize(
    ("fields", "prompt", "output", "expected"),
    [
        ({"repetition_penalty": 1.5}, [1, 1, 2], [], [4.0, -3.0]),
        ({"repetition_penalty": 1.5}, [3], [1, 2], [4.0, -3.0]),
        ({"repetition_penalty": 1.5}, [1], [1], [4.0, -2.0]),  # once, however often it occurs
        ({"presence_penalty": 2.0}, [1, 1, 2], [], [6.0, -2.0]),
        ({"presence_penalty": 2.0}, [2], [1, 1], [4.0, -2.0]),
        ({"frequency_penalty": 1.5}, [1, 1, 1], [], [6.0, -2.0]),
        ({"frequency_penalty": 1.5}, [1], [1, 2, 1], [3.0, -3.5]),
        ({"frequency_penalty": 0.5, "presence_penalty": 1.0, "repetition_penalty": 1.5}, [2], [1, 1], [2.0, -3.0]),
        ({"presence_penalty": 1.0}, [], [2], [6.0, -3.0]),
    ],
)
def test_which_tokens_count(fields: Any, prompt: list[int], output: list[int], expected: list[float]) -> None:
    """SMP-03: repetition sees prompt and output, presence and frequency the output only."""
    rows = SamplingRows(1, 4, torch.device("cpu"))
    rows.set_row(0, RowSampling(params=SamplingParams(**fields), seed=0), 0, len(prompt))
    history = torch.tensor([[*prompt, *output, 0, 0]], dtype=torch.int32)
    logits = torch.tensor([[5.0, 6.0, -2.0, 7.0]])
    apply_penalties(logits, rows.gather([0], [len(prompt + output)], history))
    assert logits[0, 1:3].tolist() == expected
    assert logits[0, 0] == 5.0  # what lies past the length is no token


def test_repetition_pushes_negative_logits_down(run: Any) -> None:
    params = SamplingParams(temperature=0.0, repetition_penalty=2.0)
    output = run(torch.tensor([[-1.0, -1.5]]), [params], prompts=[[0]])
    assert output.token_ids.tolist() == [1]


def test_penalties_do_not_depend_on_the_batch(run: Any, random_logits: Any) -> None:
    """SMP-04: the same tokens beside requests with other penalties, without any, and with longer histories."""
    logits = random_logits(3, 50)
    rows = [
        SamplingParams(temperature=0.0, repetition_penalty=2.0),
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.0, frequency_penalty=1.0, presence_penalty=-1.0),
    ]
    prompts, outputs = [[3, 4, 5], [1] * 30, [9] * 20], [[3, 7], [2] * 9, [int(logits[2].argmax())] * 12]
    together = run(logits, rows, prompts=prompts, outputs=outputs).token_ids.tolist()
    alone = [
        run(logits[k : k + 1], [rows[k]], prompts=[prompts[k]], outputs=[outputs[k]]).token_ids.item() for k in range(3)
    ]
    assert together == alone
    assert together[1] == logits[1].argmax()
    assert together[2] != logits[2].argmax()


def test_given_logits_are_left_alone(run: Any, random_logits: Any) -> None:
    logits = random_logits(2, 30)
    before = logits.clone()
    run(logits, [SamplingParams(repetition_penalty=1.3, logit_bias={1: 5.0}, top_k=3)] * 2, prompts=[[1], [2]])
    assert torch.equal(logits, before)
