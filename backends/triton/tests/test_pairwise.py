"""Combinations that hold every pair of values."""

from itertools import combinations, product

import pytest

from pageport_triton.pairwise import pairwise

OPTIONS = [
    {"dtype": ["fp16", "bf16"], "heads": [1, 4, 8], "window": [None, 512], "softcap": [False, True]},
    {"a": [1], "b": [2, 3], "c": [4, 5, 6, 7]},
    {"a": [0, 1, 2, 3], "b": [0, 1, 2, 3], "c": [0, 1, 2, 3]},
    {"only": [3, 1, 2]},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_every_two_values_of_two_options_meet(options: dict[str, list[object]]) -> None:
    chosen = pairwise(options)
    for first, second in combinations(options, 2):
        met = {(row[first], row[second]) for row in chosen}
        assert met == set(product(options[first], options[second]))


@pytest.mark.parametrize("options", OPTIONS)
def test_every_value_is_there_and_the_first_ones_come_first(options: dict[str, list[object]]) -> None:
    chosen = pairwise(options)
    assert chosen[0] == {name: values[0] for name, values in options.items()}
    for name, values in options.items():
        assert {row[name] for row in chosen} == set(values)


def test_far_fewer_combinations_than_all_are_needed() -> None:
    options = {letter: [0, 1, 2] for letter in "abcdef"}
    assert len(pairwise(options)) <= 20
    assert len(pairwise(OPTIONS[0])) <= 8
