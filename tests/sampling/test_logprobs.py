"""Logprobs of chosen and likely tokens and of prompts."""

from typing import Any

import pytest
import torch

from pageport.sampling.logprobs import prompt_logprobs, token_logprobs
from pageport.sampling.params import SamplingParams
from pageport.sampling.row import RowSampling


def test_chosen_token_first_then_the_likeliest(run: Any, random_logits: Any) -> None:
    logits = random_logits(1, 60)
    output = run(logits, [SamplingParams(logprobs=3, seed=1, temperature=3.0)])
    (entry,) = token_logprobs(output.logprobs, 1)
    reference = logits[0].double().log_softmax(-1)
    order = reference.argsort(descending=True).tolist()
    chosen = int(output.token_ids[0])
    assert entry is not None
    assert entry.token_ids == [chosen, *order[:3]]
    assert entry.logprobs == pytest.approx([float(reference[i]) for i in entry.token_ids], abs=1e-5)
    assert entry.ranks == [order.index(chosen) + 1, 1, 2, 3]


def test_each_row_gets_what_it_asked_for(run: Any, random_logits: Any) -> None:
    wanted = [None, 0, 2, -1, 20, None, 5]
    output = run(random_logits(7, 30), [SamplingParams(logprobs=count, seed=k) for k, count in enumerate(wanted)])
    entries = token_logprobs(output.logprobs, 7)
    assert [entry and len(entry.token_ids) for entry in entries] == [None, 1, 3, 31, 21, None, 6]
    assert [entry.token_ids[0] for entry in entries if entry] == output.token_ids[[1, 2, 3, 4, 6]].tolist()


def test_logprobs_are_raw(run: Any, random_logits: Any) -> None:
    logits = random_logits(2, 40)
    edited = SamplingParams(
        logprobs=5, temperature=0.3, top_k=2, logit_bias={3: 50.0}, repetition_penalty=2.0, allowed_token_ids=[3, 4]
    )
    output = run(logits, [edited, SamplingParams(logprobs=5, temperature=0.0)])
    entry = token_logprobs(output.logprobs, 2)[0]
    reference = logits[0].log_softmax(-1)
    assert entry is not None
    assert entry.token_ids[0] == 3
    assert entry.logprobs == [float(reference[i]) for i in entry.token_ids]
    assert entry.token_ids[1:] == reference.argsort(descending=True)[:5].tolist()


def test_equal_tokens_share_a_rank_and_come_lowest_id_first(run: Any) -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0, 2.0, 1.0]])
    output = run(logits, [SamplingParams(temperature=0.0, logprobs=-1)])
    (entry,) = token_logprobs(output.logprobs, 1)
    assert entry is not None
    assert entry.token_ids == [1, 1, 2, 4, 0, 5, 3]
    assert entry.ranks == [1, 1, 1, 1, 4, 4, 6]


def test_a_beam_gets_its_candidates_whatever_its_temperature(run: Any, random_logits: Any) -> None:
    logits = random_logits(6, 50)
    params = SamplingParams(temperature=2.0)
    output = run(logits, [RowSampling(params=params, seed=k, num_candidates=8) for k in range(6)])
    for k, entry in enumerate(token_logprobs(output.logprobs, 6)):
        best = logits[k].argsort(descending=True).tolist()
        assert output.token_ids[k] == best[0]
        assert entry is not None
        assert entry.token_ids == [best[0], *best[:8]]


def test_prompt_logprobs_score_the_next_token(random_logits: Any) -> None:
    logits = random_logits(150, 40)  # more rows than are in work at a time
    next_token_ids = [(7 * i) % 40 for i in range(150)]
    entries = prompt_logprobs(logits, next_token_ids, 2)
    reference = logits.log_softmax(-1)
    assert len(entries) == 150
    for i, entry in enumerate(entries):
        assert entry.token_ids == [next_token_ids[i], *reference[i].argsort(descending=True)[:2].tolist()]
        assert entry.logprobs == [float(reference[i, token_id]) for token_id in entry.token_ids]
        assert entry.ranks[0] == 1 + int((reference[i] > reference[i, next_token_ids[i]]).sum())


@pytest.mark.parametrize(("num_logprobs", "length"), [(0, 1), (1, 2), (-1, 41), (1000, 41)])
def test_prompt_logprobs_list_as_many_as_asked(random_logits: Any, num_logprobs: int, length: int) -> None:
    entries = prompt_logprobs(random_logits(3, 40).bfloat16(), [1, 2, 3], num_logprobs)
    assert [len(entry.token_ids) for entry in entries] == [length] * 3


def test_no_prompt_positions_make_no_entries(random_logits: Any) -> None:
    assert prompt_logprobs(random_logits(0, 40), [], 5) == []
