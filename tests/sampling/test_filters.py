"""How many tokens survive min_p, top_k and top_p."""

import math
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pageport.backend.reference.draw import Filters, kept_counts
from pageport.backend.reference.ranking import ranked

LOGIT = st.one_of(st.floats(-20, 20, width=32), st.sampled_from([0.0, 1.0, float("-inf")]))


def count(logits: list[float], top_k: int, top_p: float, min_p: float, width: int) -> Any:
    scaled = torch.tensor([logits]) - max(logits)
    prefix = ranked(scaled, width)
    probabilities = scaled.softmax(-1).gather(1, prefix.indexes)
    filters = Filters(torch.tensor([top_k]), torch.tensor([top_p]), torch.tensor([min_p]))
    return kept_counts(prefix.values, probabilities, filters, len(logits))


@settings(max_examples=200, deadline=None)
@given(
    logits=st.lists(LOGIT, min_size=2, max_size=30).filter(lambda row: max(row) > -1e9),
    top_k=st.integers(1, 30),
    top_p=st.floats(0.0078125, 1, width=32),
    min_p=st.floats(0, 1, width=32),
)
def test_survivors_are_the_smallest_set_that_qualifies(
    logits: list[float], top_k: int, top_p: float, min_p: float
) -> None:
    size = len(logits)
    kept = int(count(logits, min(top_k, size), top_p, min_p, size).counts)
    # After ``kept`` in order: every filter holds for those kept, and some filter refuses the next one.
    weights = sorted((math.exp(x - max(logits)) for x in logits), reverse=True)
    num_min_p = [sum(w >= min_p * (1 + slack) for w in weights) for slack in (1e-5, -1e-5)]
    possible = set()
    for cut in range(num_min_p[0], num_min_p[1] + 1):
        left = weights[: max(1, min(cut, top_k))]
        sums = [math.fsum(left[: i + 1]) / math.fsum(left) for i in range(len(left))]
        for slack in (1e-5, -1e-5):
            enough = [i + 1 for i, s in enumerate(sums) if s >= top_p + slack]
            possible.add(len(left) if top_p == 1 or not enough else enough[0])
    assert min(possible) <= kept <= max(possible)


@settings(max_examples=200, deadline=None)
@given(
    logits=st.lists(LOGIT, min_size=8, max_size=8).filter(lambda row: max(row) > -1e9),
    top_k=st.integers(1, 8),
    top_p=st.sampled_from([0.1, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.3, 1.0]),
    width=st.integers(1, 8),
)
def test_what_a_short_prefix_calls_exact_is_exact(
    logits: list[float], top_k: int, top_p: float, min_p: float, width: int
) -> None:
    short, whole = count(logits, top_k, top_p, min_p, width), count(logits, top_k, top_p, min_p, 8)
    if bool(short.is_exact):
        assert int(short.counts) == int(whole.counts)
    assert bool(whole.is_exact)


def test_a_nucleus_inside_the_prefix_is_seen_as_exact() -> None:
    kept = count([5.0, 4.0, 3.0, 2.0, 1.0, 0.0], top_k=6, top_p=0.8, min_p=0.0, width=3)
    assert (kept.counts.tolist(), kept.is_exact.tolist()) == ([2], [True])


def test_top_k_keeps_exactly_k_of_equal_tokens() -> None:
    assert count([1.0] * 6, top_k=3, top_p=1.0, min_p=0.0, width=6).counts.tolist() == [3]


def test_a_sum_that_is_exactly_top_p_is_enough() -> None:
    filters = Filters(torch.tensor([4]), torch.tensor([0.75]), torch.tensor([0.0]))
    probabilities = torch.tensor([[0.5, 0.25, 0.125, 0.125]])
    assert kept_counts(probabilities.log(), probabilities, filters, 4).counts.tolist() == [2]
