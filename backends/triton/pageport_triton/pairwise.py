"""``pairwise``: few combinations of several options in which every two values of two options meet."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

Options = Mapping[str, Sequence[Any]]
Combination = dict[str, Any]

# Two options, each with the place of one of its values.
_Pair = tuple[tuple[str, int], tuple[str, int]]


def pairwise(options: Options) -> list[Combination]:
    """Return combinations that hold every pair of values, chosen one by one for the most pairs not met before.

    The first combination is that of each option's first value. The same options give the same list.
    """
    all_places = product(*(range(len(values)) for values in options.values()))
    candidates = [dict(zip(options, places, strict=True)) for places in all_places]
    if len(options) < 2:
        return [_values(options, places) for places in candidates]
    missing = {pair for places in candidates for pair in _pairs(places)}
    chosen: list[Combination] = []
    best = candidates[0]
    while missing:
        chosen.append(_values(options, best))
        missing.difference_update(_pairs(best))
        best = max(candidates, key=lambda places: sum(pair in missing for pair in _pairs(places)))
    return chosen


def _values(options: Options, places: Mapping[str, int]) -> Combination:
    return {name: options[name][place] for name, place in places.items()}


def _pairs(places: Mapping[str, int]) -> Iterator[_Pair]:
    return combinations(places.items(), 2)
