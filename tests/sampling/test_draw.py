"""Drawing: frequencies, children, extremes, and that shortcuts change nothing."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pageport.backend.reference import draw
from pageport.backend.reference.draw import Draws, Filters, draw_filtered, draw_plain
from pageport.backend.reference.philox import gumbel, vocab_bits
from pageport.sampling.params import SamplingParams


def chi_square(counts: Tensor, probabilities: Tensor) -> float:
    expected = probabilities * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0001, 100.0])
def test_frequencies_are_those_of_softmax(draw_many: Any, temperature: float) -> None:
    """SMP-07: a high temperature really flattens."""
    logits = torch.tensor([2.0, 1.5, 1.0, 0.0, -0.5, -1.0, -1.5, 0.7])
    tokens = draw_many(logits, SamplingParams(temperature=temperature, seed=11), 20_000)
    counts = torch.bincount(tokens, minlength=8)
    assert chi_square(counts, (logits / temperature).softmax(-1)) < 24.3  # 7 degrees of freedom, 0.1 %


def test_frequencies_under_filters_are_renormalised(draw_many: Any) -> None:
    logits = torch.tensor([0.4, 0.3, 0.2, 0.06, 0.04]).log()
    tokens = draw_many(logits, SamplingParams(top_p=0.85, top_k=4, seed=3), 20_000)
    counts = torch.bincount(tokens, minlength=5)
    assert counts[3:].tolist() == [0, 0]
    assert chi_square(counts[:3], torch.tensor([0.4, 0.3, 0.2]) / 0.9) < 13.8  # 2 degrees of freedom, 0.1 %


def test_children_are_independent_and_repeat(draw_many: Any) -> None:
    """SMP-01: n choices of one seed differ among themselves and are the same on the repeat."""
    logits, params = torch.tensor([1.0, 0.5, 0.0]), SamplingParams(seed=7)
    children = [draw_many(logits, params, 9_000, index) for index in range(4)]
    for index, child in enumerate(children):
        assert torch.equal(child, draw_many(logits, params, 9_000, index))
    p = logits.softmax(-1)
    for other in children[1:]:
        pairs = torch.bincount(children[0] * 3 + other, minlength=9)
        assert chi_square(pairs, torch.outer(p, p).flatten()) < 26.1  # 8 degrees of freedom, 0.1 %


def test_positions_are_independent(draw_many: Any) -> None:
    logits = torch.tensor([1.0, 0.5, 0.0])
    tokens = draw_many(logits, SamplingParams(seed=7), 18_000)
    pairs = torch.bincount(tokens[:-1:2] * 3 + tokens[1::2], minlength=9)
    p = logits.softmax(-1)
    assert chi_square(pairs, torch.outer(p, p).flatten()) < 26.1


@pytest.mark.parametrize("temperature", [1e-3, 1e-4, 1.1e-5, 1e-6, 1e-12, 5e-324])
@pytest.mark.parametrize("top_p", [1.0, 1e-4, 1e-9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tiny_temperatures_and_top_p_are_greedy(run: Any, temperature: float, top_p: float, dtype: torch.dtype) -> None:
    """SMP-05: no NaN and no empty text, also with a bias of -100."""
    logits = (torch.arange(3000.0)[None] * 0.5).flip(1).to(dtype).roll(17, dims=1)
    logits[0, 17] += 8  # clear of the next one in any dtype
    params = SamplingParams(temperature=temperature, top_p=top_p, logit_bias={5: -100.0})
    output = run(logits, [params])
    assert output.errors() == {}
    assert output.token_ids.tolist() == [17]


@pytest.mark.parametrize(
    "extreme",
    [
        SamplingParams(temperature=100.0),
        SamplingParams(repetition_penalty=0.01, temperature=1.1e-5),
        SamplingParams(repetition_penalty=100.0, presence_penalty=2.0, frequency_penalty=-2.0),
        SamplingParams(min_p=1.0),
        SamplingParams(top_p=1e-12, top_k=10**9),
        SamplingParams(logit_bias=dict.fromkeys(range(60), -100.0)),
    ],
)
def test_extreme_parameters_leave_no_error_and_the_neighbour_alone(
    run: Any, random_logits: Any, extreme: SamplingParams
) -> None:
    """SMP-07."""
    logits = random_logits(2, 60, scale=500.0)
    neighbour = SamplingParams(seed=5, top_p=0.9)
    together = run(logits, [extreme, neighbour], prompts=[[1, 2], [3]], outputs=[[4], []])
    alone = run(logits[1:], [neighbour], prompts=[[3]])
    assert together.errors() == {}
    assert together.token_ids[1] == alone.token_ids[0]


def scaled_logits(kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    scale = {"peaked": 6.0, "broad": 2.0, "flat": 0.3, "tied": 1.0}[kind]
    logits = torch.randn((6, 20_000), generator=generator) * scale
    logits = (logits * 2).round() if kind == "tied" else logits
    return logits - logits.max(dim=-1, keepdim=True).values


DRAWS = Draws(torch.tensor([1, 2, 3, 2**63 - 1, -1, 0]), torch.tensor([0, 1, 2, 3, 2**31, 9]))


@pytest.mark.parametrize("kind", ["peaked", "broad", "flat", "tied"])
def test_looking_only_at_contenders_changes_nothing(kind: str) -> None:
    scaled = scaled_logits(kind)
    noise = gumbel(vocab_bits(*DRAWS, 20_000))
    assert torch.equal(draw_plain(scaled, scaled.argmax(-1), DRAWS), (noise + scaled).argmax(-1))


FILTERS = [
    Filters(torch.full((6,), 20_000), torch.full((6,), 0.9), torch.zeros(6)),
    Filters(torch.tensor([5, 100, 3000, 20_000, 9000, 1]), torch.full((6,), 0.95), torch.zeros(6)),
    Filters(torch.full((6,), 20_000), torch.tensor([1.0, 0.5, 1.0, 0.99, 1e-6, 1.0]), torch.full((6,), 0.05)),
    Filters(torch.tensor([2000, 2000, 2000, 1, 1, 50]), torch.ones(6), torch.tensor([0.0, 0.3, 1.0, 0, 0, 0.001])),
]


@pytest.mark.parametrize("kind", ["peaked", "broad", "flat", "tied"])
@pytest.mark.parametrize("filters", FILTERS)
def test_looking_at_few_tokens_first_changes_nothing(
    kind: str, filters: Filters, monkeypatch: pytest.MonkeyPatch
) -> None:
    scaled = scaled_logits(kind)
    expected = torch.tensor([full_search(scaled[k], Filters(*(f[k] for f in filters)), k) for k in range(6)])
    for widths in [(), (1,), (16, 256), (1024, 8192)]:
        monkeypatch.setattr(draw, "_FIRST_WIDTHS", widths)
        assert torch.equal(draw_filtered(scaled, filters, DRAWS), expected)


def full_search(scaled: Tensor, filters: Filters, row: int) -> int:
    values = scaled.double().numpy()
    order = np.lexsort((np.arange(len(values)), -values))
    kept = order[values[order] >= (np.log(float(filters.min_p)) if filters.min_p > 0 else -np.inf)]
    kept = kept[: int(filters.top_k)]
    shares = np.exp(values[kept])
    if filters.top_p < 1:
        before = np.cumsum(shares / shares.sum()) - shares / shares.sum()
        kept = kept[before < float(filters.top_p)]
    noise = gumbel(vocab_bits(DRAWS.seeds[row : row + 1], DRAWS.positions[row : row + 1], len(values)))[0].numpy()
    return int(kept[np.argmax(values[kept] + noise[kept])])
