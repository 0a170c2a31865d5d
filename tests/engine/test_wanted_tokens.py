"""Which tokens of a step are computed to the end."""

import numpy as np
import pytest

from pageport.engine.wanted_tokens import WantedTokens
from pageport.scheduling.batch import Batch

# Entries of 1, 4, 3 and 5 tokens: 0 | 1 … 4 | 5 … 7 | 8 … 12.
ENTRY_STARTS = np.array([0, 1, 5, 8, 13], np.int32)


def _wanted(sampled=(), scored=(), pooled=()):
    batch = Batch(
        step=0, sample_sources=list(sampled), prompt_logprob_entries=list(scored), pooled_entries=list(pooled)
    )
    return WantedTokens(batch, ENTRY_STARTS)


@pytest.mark.parametrize(
    ("wanted", "tokens"),
    [
        ({"sampled": [0, 1, 1, 3]}, [0, 4, 12]),
        ({"sampled": [0], "scored": [2]}, [0, 5, 6, 7]),
        ({"pooled": [1], "sampled": [1, 2]}, [1, 2, 3, 4, 7]),
        ({}, []),
    ],
)
def test_of_sampled_entries_the_last_token_is_wanted_of_others_all(wanted, tokens):
    assert _wanted(**wanted).tokens.tolist() == tokens


def test_tokens_are_not_listed_where_all_are_wanted():
    assert _wanted(sampled=[0], scored=[1, 2, 3]).tokens is None


def test_rows_count_wanted_tokens_only():
    wanted = _wanted(sampled=[0, 1, 3], scored=[2])
    assert wanted.rows(2, 1, 3) == slice(3, 5)
    assert wanted.last_rows([3, 0, 1]).tolist() == [5, 0, 1]


def test_no_tokens_of_an_entry_are_no_rows():
    wanted = _wanted(scored=[3])
    assert wanted.tokens[wanted.rows(3, 5, 5)].size == 0
