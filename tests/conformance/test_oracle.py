"""The attention oracle against loops over single numbers, and its power: faults move results far beyond tolerance."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from pageport.testing.conformance.attention_case import AttentionCase
from pageport.testing.conformance.levels.attention import grid
from pageport.testing.conformance.oracle import DenseRequest, Formula, attend
from pageport.testing.conformance.scene import RowResult, Scene
from pageport.testing.conformance.suspects import find_suspect, suspects
from pageport_cpu.device import CpuDevice

VARIANTS = {
    "plain": {},
    "window": {"sliding_window": 3},
    "window of one": {"sliding_window": 1},
    "softcap": {"softcap": 0.7},
    "sinks": {"sinks": np.array([-1.0, 0.5, 2.0, 0.0])},
    "alibi": {"alibi": np.array([0.5, 0.25, 0.125, 0.0625])},
    "not causal": {"causal": False},
    "all": {
        "sliding_window": 4,
        "softcap": 0.7,
        "sinks": np.array([-1.0, 0.5, 2.0, 0.0]),
        "alibi": np.array([0.5, 0.25, 0.125, 0.0625]),
    },
}


def random_request(queries: int, length: int, kv_heads: int) -> DenseRequest:
    draw = np.random.default_rng(7).standard_normal
    return DenseRequest(
        query=draw((queries, 4, 3)), keys=draw((length, kv_heads, 3)), values=draw((length, kv_heads, 2))
    )


def attend_slowly(request: DenseRequest, formula: Formula, query: int, head: int) -> list[float]:
    """Read the definition aloud, for one query and head."""
    length, num_kv_heads, _ = request.keys.shape
    kv_head = head // (4 // num_kv_heads)
    position = length - len(request.query) + query
    total = 0.0 if formula.sinks is None else math.exp(formula.sinks[head])
    result = [0.0, 0.0]
    for key in range(length):
        if formula.causal and key > position:
            continue
        if formula.sliding_window is not None and key < position - formula.sliding_window + 1:
            continue
        score = formula.scale * sum(request.query[query, head, i] * request.keys[key, kv_head, i] for i in range(3))
        if formula.softcap is not None:
            score = formula.softcap * math.tanh(score / formula.softcap)
        if formula.alibi is not None:
            score += formula.alibi[head] * (key - position)
        total += math.exp(score)
        for i in range(2):
            result[i] += math.exp(score) * request.values[key, kv_head, i]
    return [value / total for value in result]


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("name", VARIANTS)
def test_oracle_is_the_definition(name, kv_heads):
    formula = Formula(scale=0.8, **VARIANTS[name])
    for queries, length in [(1, 1), (1, 7), (3, 7), (5, 5)]:
        request = random_request(queries, length, kv_heads)
        expected = [[attend_slowly(request, formula, query, head) for head in range(4)] for query in range(queries)]
        np.testing.assert_allclose(attend(request, formula), expected, rtol=1e-12, atol=1e-14)


class Row(NamedTuple):
    """One row of a case, as level 3 draws it."""

    result: RowResult
    formula: Formula


def rows_of(case: AttentionCase) -> Iterator[Row]:
    with Scene(CpuDevice(), case, np.random.default_rng(3)) as scene:
        scene.write_history()
        for result in scene.step(case.rows, case.num_decodes).rows:
            if result.request is not None:
                yield Row(result, scene.formula)


CASES = {
    name: case
    for name, case in grid(CpuDevice().capabilities)
    if name.startswith(("variants/", "windows/", "dtypes/", "batch/many", "lengths/up to")) and case.block_size == 16
}


@pytest.mark.parametrize("name", CASES)
def test_a_fault_moves_some_row_of_each_case_far_beyond_the_tolerance(name):
    """A mask that is off by one would hide among thousands of keys if queries were aimed at none."""
    case = CASES[name]
    effects: dict[str, float] = {}
    for result, formula in rows_of(case):
        right = attend(result.request, formula)
        for suspect in suspects(result.request, formula, case.block_size):
            # Windows longer than every row change nothing; positions and lengths in a cause differ from row to row.
            cause = " ".join(word for word in suspect.cause.split() if not word.strip(",:").isdecimal())
            effect = np.abs(suspect.answer() - right) / (case.tolerance * (1 + np.abs(right)))
            effects[cause] = max(effects.get(cause, 0.0), float(effect.max()))
    assert {cause: effect for cause, effect in effects.items() if 1e-9 < effect < 5} == {}
    assert len(effects) >= 8


def test_a_single_key_with_a_wrong_mask_is_named():
    request, formula = random_request(4, 40, 2), Formula(scale=0.8, sliding_window=20)
    actual = attend(request, formula)
    seen = np.arange(40) <= 37
    seen[24] = False
    seen[:18] = False
    actual[1] = attend(request, formula, np.tile(seen, (4, 1)))[1]
    assert find_suspect(request, formula, 16, actual, 1e-4) == "key at position 24 is not seen by query 37"


def test_what_no_known_fault_explains_is_not_explained():
    request, formula = random_request(2, 9, 2), Formula(scale=0.8)
    assert find_suspect(request, formula, 4, attend(request, formula) + 0.3, 1e-4) is None
