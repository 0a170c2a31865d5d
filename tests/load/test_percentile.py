"""Percentiles are values that were measured."""

import math

import pytest

from pageport.load.percentile import percentile


@pytest.mark.parametrize(("share", "expected"), [(0.0, 1), (0.5, 51), (0.99, 100), (1.0, 100)])
def test_percentile_is_a_value_of_the_list(share: float, expected: int) -> None:
    assert percentile(range(100, 0, -1), share) == expected


def test_of_nothing_it_is_no_number() -> None:
    assert math.isnan(percentile([], 0.5))
