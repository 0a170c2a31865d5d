"""Impossible parameters are refused with the field's name; possible ones pass."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pageport.errors import InvalidParameter
from pageport.sampling.beam import BeamSearchParams
from pageport.sampling.params import SamplingParams
from pageport.sampling.structured import StructuredOutput
from pageport.sampling.validate import validate, validate_beam

NAN, INF = float("nan"), float("inf")

IMPOSSIBLE: dict[str, list[Any]] = {
    "n": [0, -1, 16385, 1.0, True, "2", None],
    "best_of": [0, -3, 2.0, False],
    "temperature": [-0.1, 100.5, 999999, 1e30, 10**400, NAN, INF, -INF, True, "1", None],
    "top_p": [0, 0.0, -1, 1.0001, 2, NAN, INF, True, "0.9"],
    "top_k": [-2, 1.5, True, NAN, "5"],
    "min_p": [-0.1, 2, NAN, True],
    "presence_penalty": [-2.1, 2.1, 1e38, NAN, INF, "0"],
    "frequency_penalty": [-2.1, 2.1, NAN, False],
    "repetition_penalty": [0, 0.0, -1, 1e-30, 1e30, NAN, INF, True],
    "seed": [2**64, -(2**63) - 1, 1.5, True, "7"],
    "stop": [[""], "", [1], 5, [None]],
    "stop_token_ids": [[-1], [1.0], [True], "12", 3],
    "include_stop_str_in_output": [1, None],
    "ignore_eos": [0, "no"],
    "max_tokens": [0, -1, 2.0, True],
    "min_tokens": [-1, 1.5, True, None],
    "bad_words": [[""], [3], "word"],
    "logit_bias": [{1: 100.5}, {1: NAN}, {-1: 1}, {"1": 1}, {1.0: 1}, {1: True}, [(1, 2)]],
    "allowed_token_ids": [[], [-1], [0.5], [True]],
    "logprobs": [-2, 1.5, True],
    "prompt_logprobs": [-2, 0.5, True],
    "logits_processors": [[3], lambda ids, logits: logits],
    "detokenize": [1],
    "skip_special_tokens": [None],
    "spaces_between_special_tokens": ["yes"],
    "truncate_prompt_tokens": [0, -2, 1.0, True],
    "pooling": ["max", "", 1, True, ["mean"], {}],
    "structured": ["[a-z]", {"regex": "a"}, StructuredOutput(), StructuredOutput(regex="a", json_object=True)],
}


def test_every_field_has_impossible_values() -> None:
    assert set(IMPOSSIBLE) == set(SamplingParams.__dataclass_fields__)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in IMPOSSIBLE for value in IMPOSSIBLE[name]])
def test_impossible_value_is_refused_by_name(name: str, value: Any) -> None:
    """SMP-07, SMP-05: what is outside the documented ranges is refused, whatever its type."""
    with pytest.raises(InvalidParameter) as caught:
        validate(replace(SamplingParams(), **{name: value}))
    assert caught.value.parameter == name


POSSIBLE: list[dict[str, Any]] = [
    {},
    {"temperature": 0},
    {"temperature": 5e-324},
    {"temperature": 100.0},
    {"temperature": np.float32(0.5), "top_k": np.int64(3)},
    {"top_p": 1e-9},
    {"top_k": -1},
    {"top_k": 10**6},
    {"min_p": 1},
    {"repetition_penalty": 0.01},
    {"presence_penalty": -2, "frequency_penalty": 2},
    {"n": 4, "temperature": 0},
    {"n": 2, "best_of": 4},
    {"seed": 2**64 - 1},
    {"seed": -(2**63)},
    {"stop": "a", "bad_words": ["b"]},
    {"stop": [], "stop_token_ids": [], "logit_bias": {}, "bad_words": [], "logits_processors": []},
    {"stop": ("a", "b"), "stop_token_ids": (1,), "allowed_token_ids": range(3)},
    {"max_tokens": None, "min_tokens": 10**6},
    {"logit_bias": {0: -100, 5: 100.0}},
    {"logprobs": -1, "prompt_logprobs": 0},
    {"truncate_prompt_tokens": -1},
    {"logits_processors": [lambda ids, logits: logits]},
]


@pytest.mark.parametrize("fields", POSSIBLE)
def test_possible_values_pass(fields: dict[str, Any]) -> None:
    validate(SamplingParams(**fields), vocab_size=100)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"max_tokens": 5, "min_tokens": 6}, "min_tokens"),
        ({"stop": "x", "detokenize": False}, "stop"),
    ],
)
def test_contradicting_fields_are_refused(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        validate(SamplingParams(**fields))
    assert caught.value.parameter == name


@pytest.mark.parametrize(
    "fields", [{"logit_bias": {100: 1}}, {"allowed_token_ids": [3, 100]}, {"stop_token_ids": [100]}]
)
def test_token_ids_beyond_the_vocabulary_are_refused(fields: dict[str, Any]) -> None:
    validate(SamplingParams(**fields))
    with pytest.raises(InvalidParameter, match="at most 99"):
        validate(SamplingParams(**fields), vocab_size=100)


def test_message_says_what_is_wrong_and_what_to_do() -> None:
    with pytest.raises(InvalidParameter, match=r"^temperature is nan; it must be a number from 0 to 100\.$"):
        validate(SamplingParams(temperature=NAN))
    with pytest.raises(InvalidParameter, match=r"^best_of is 2; fewer than n = 3 are sampled\. Raise best_of or lower"):
        validate(SamplingParams(n=3, best_of=2))


def test_a_huge_value_makes_a_short_message() -> None:
    with pytest.raises(InvalidParameter) as caught:
        validate(SamplingParams(stop=["x" * 10_000, ""]))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"beam_width": 0}, "beam_width"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"num_return": 5}, "num_return"),
        ({"num_return": 0}, "num_return"),
        ({"length_penalty": NAN}, "length_penalty"),
        ({"length_penalty": "1"}, "length_penalty"),
        ({"temperature": -1}, "temperature"),
        ({"early_stopping": 1}, "early_stopping"),
        ({"ignore_eos": None}, "ignore_eos"),
    ],
)
def test_impossible_beam_search_is_refused(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidParameter) as caught:
        validate_beam(replace(BeamSearchParams(beam_width=4, max_tokens=8), **fields))
    assert caught.value.parameter == name


def test_possible_beam_search_passes() -> None:
    validate_beam(BeamSearchParams(beam_width=4, max_tokens=8, num_return=2, length_penalty=-1.5))
