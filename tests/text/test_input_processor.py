"""``InputProcessor``: prompts and parameters, checked before they reach an engine."""

import random
from dataclasses import replace
from typing import Any

import pytest

from pageport.engine.input_processor import InputProcessor
from pageport.engine.messages import EngineInfo, EngineRequest
from pageport.errors import InvalidParameter, RequestTooLong
from pageport.sampling.beam import BeamSearchParams
from pageport.sampling.params import SamplingParams
from pageport.text.tokenizer import Tokenizer

from .conftest import build_byte_level


@pytest.fixture
def processor(byte_level: Tokenizer, info: EngineInfo) -> InputProcessor:
    return InputProcessor(byte_level, info, 0)


def process(processor: InputProcessor, prompt: Any = "a", **params: Any) -> EngineRequest:
    return processor.process(prompt, SamplingParams(**params), request_id="r")


@pytest.mark.parametrize(
    "prompt", ["abc", [97, 98, 99], (97, 98, 99), {"prompt": "abc"}, {"prompt_token_ids": [97, 98, 99]}]
)
def test_every_form_of_a_prompt_becomes_its_tokens(processor: InputProcessor, prompt: Any) -> None:
    assert process(processor, prompt).prompt_token_ids == [97, 98, 99]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([-1], "Token 0 of the prompt is -1; this model's ids go from 0 to 263"),
        ([5, 264], "Token 1 of the prompt is 264"),
        ([10**12], "is 1000000000000"),
        ([1.5], "is 1.5; token ids are whole numbers"),
        ([True], "is True; token ids are whole numbers"),
        ([[1, 2], "x"], r"is \[1, 2\]; token ids are whole numbers"),
        (["a"], "is 'a'; token ids"),
        (7, "is 7, a int"),
        (b"ab", "a bytes"),
        (None, "is None"),
        ({}, r"keys \[\]"),
        ({"prompt": "a", "prompt_token_ids": [1]}, "Give either"),
    ],
)
def test_impossible_prompts_are_refused_with_the_value(processor: InputProcessor, prompt: Any, message: str) -> None:
    """VAL-03."""
    with pytest.raises(InvalidParameter, match=message) as caught:
        process(processor, prompt)
    assert caught.value.parameter == "prompt"


@pytest.mark.parametrize("prompt", ["", [], {"prompt_token_ids": []}])
def test_an_empty_prompt_is_the_first_token_where_the_model_has_one(processor: InputProcessor, prompt: Any) -> None:
    """LIM-05."""
    assert process(processor, prompt).prompt_token_ids == [259]


@pytest.mark.parametrize("prompt", ["", [], {"prompt_token_ids": []}])
def test_an_empty_prompt_is_refused_where_it_has_none(info: EngineInfo, prompt: Any) -> None:
    """LIM-05."""
    processor = InputProcessor(Tokenizer(build_byte_level()), info, 0)
    with pytest.raises(InvalidParameter, match=r"The prompt is empty.*Give at least one token"):
        process(processor, prompt)
    assert process(processor, " ").prompt_token_ids == [32]


def test_a_request_past_the_context_names_all_three_numbers(processor: InputProcessor) -> None:
    """LIM-01."""
    with pytest.raises(RequestTooLong) as caught:
        process(processor, [1] * 8, max_tokens=2045)
    assert str(caught.value) == (
        "This model's context is 2048 tokens; the prompt has 8 and max_tokens asks for 2045, 2053 together. "
        "Lower max_tokens to at most 2040, or shorten the prompt."
    )
    assert caught.value.parameter == "max_tokens"


def test_a_prompt_that_fills_the_context_is_to_be_shortened(processor: InputProcessor) -> None:
    with pytest.raises(RequestTooLong, match=r"has 2048 and at least 1 is generated, 2049 together. Shorten") as caught:
        process(processor, [1] * 2048, max_tokens=None)
    assert caught.value.parameter == "prompt"


def test_a_request_larger_than_the_cache_is_refused_with_the_arithmetic(processor: InputProcessor) -> None:
    """LIM-03."""
    with pytest.raises(RequestTooLong) as caught:
        process(processor, [1] * 1000, max_tokens=601)
    assert str(caught.value) == (
        "The KV cache holds 1600 tokens of one request (100 blocks of 16); the prompt has 1000 and max_tokens asks for "
        "601, 1601 together. Lower max_tokens to at most 600, or shorten the prompt."
    )


def test_no_max_tokens_means_the_rest_of_what_context_and_cache_hold(
    processor: InputProcessor, byte_level: Tokenizer, info: EngineInfo
) -> None:
    assert process(processor, [1] * 100, max_tokens=None).max_tokens == 1500
    roomy = InputProcessor(byte_level, replace(info, max_request_tokens=9999), 0)
    assert process(roomy, [1] * 100, max_tokens=None).max_tokens == 1948
    assert process(roomy, [1] * 100).max_tokens == 16


@pytest.mark.parametrize(("keep", "length"), [(3, 3), (500, 100), (-1, 100)])
def test_truncation_keeps_the_end_of_the_prompt(processor: InputProcessor, keep: int, length: int) -> None:
    prompt = list(range(100))
    assert process(processor, prompt, truncate_prompt_tokens=keep).prompt_token_ids == prompt[-length:]


def test_truncation_to_the_model_leaves_room_for_the_output(processor: InputProcessor) -> None:
    request = process(processor, [1] * 5000, truncate_prompt_tokens=-1, max_tokens=100)
    assert (len(request.prompt_token_ids), request.max_tokens) == (1500, 100)


def test_min_tokens_above_max_tokens_is_refused(processor: InputProcessor) -> None:
    """STP-07."""
    with pytest.raises(InvalidParameter, match="min_tokens is 9") as caught:
        process(processor, min_tokens=9, max_tokens=8)
    assert caught.value.parameter == "min_tokens"
    with pytest.raises(RequestTooLong, match="at least 5000 is generated"):
        process(processor, min_tokens=5000, max_tokens=None)


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"logit_bias": {260: 5.0}}, "logit_bias"),
        ({"logit_bias": {999999: -100.0}}, "logit_bias"),
        ({"logit_bias": {-1: 3.0}}, "logit_bias"),
        ({"allowed_token_ids": [260]}, "allowed_token_ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"stop_token_ids": [270]}, "stop_token_ids"),
        ({"stop_token_ids": [-5], "min_tokens": 3}, "stop_token_ids"),
        ({"bad_words": [""]}, "bad_words"),
    ],
)
def test_token_ids_that_are_no_tokens_are_refused(processor: InputProcessor, params: dict[str, Any], name: str) -> None:
    """VAL-01, VAL-04: also ids that only pad the output matrix (260 to 263 here)."""
    with pytest.raises(InvalidParameter, match=name) as caught:
        process(processor, **params)
    assert caught.value.parameter == name


@pytest.mark.parametrize(
    ("params", "name"),
    [
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"n": 9}, "n"),
        ({"n": 10**18}, "n"),
        ({"best_of": 9}, "best_of"),
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"stop": "x" * 1025}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop_token_ids": [1] * 1025}, "stop_token_ids"),
        ({"bad_words": ["x"] * 1025}, "bad_words"),
    ],
)
def test_more_than_the_documented_caps_is_refused(processor: InputProcessor, params: dict[str, Any], name: str) -> None:
    """SEC-08, SEC-11."""
    with pytest.raises(InvalidParameter) as caught:
        process(processor, **params)
    assert caught.value.parameter == name


def test_logprobs_of_the_whole_vocabulary_are_for_owners_that_allow_them(
    byte_level: Tokenizer, info: EngineInfo
) -> None:
    assert process(InputProcessor(byte_level, info, 0, max_logprobs=-1), logprobs=-1).sampling.logprobs == -1
    assert process(InputProcessor(byte_level, info, 0, max_logprobs=50), logprobs=50).sampling.logprobs == 50


def test_the_models_end_tokens_stop_unless_ignored(processor: InputProcessor) -> None:
    """STP-07."""
    assert process(processor).stop_token_ids == {258}
    assert process(processor, stop_token_ids=[1, 2]).stop_token_ids == {1, 2, 258}
    assert process(processor, ignore_eos=True).stop_token_ids == set()
    assert process(processor, ignore_eos=True, stop_token_ids=[1]).stop_token_ids == {1}


def test_bad_words_are_encoded_with_and_without_a_space(processor: InputProcessor) -> None:
    request = process(processor, bad_words=["hex", " b"])
    assert request.bad_words_token_ids == ((256, 120), (32, 256, 120), (98,), (32, 98))


def test_seeds_are_the_users_or_drawn_from_the_given_source(byte_level: Tokenizer, info: EngineInfo) -> None:
    def drawn(source: int | random.Random) -> list[int]:
        processor = InputProcessor(byte_level, info, source)
        return [process(processor).seed for _ in range(3)]

    assert drawn(7) == drawn(7) == drawn(random.Random(7))
    assert len({*drawn(7), *drawn(8)}) == 6
    assert process(InputProcessor(byte_level, info, 7), seed=42).seed == 42


def test_lone_surrogates_become_replacement_characters(processor: InputProcessor) -> None:
    """VAL-09: the documented choice."""
    assert process(processor, "\ud83c").prompt_token_ids == [0xEF, 0xBF, 0xBD]
    assert process(processor, "a", stop=["\ud83c"], bad_words=["\udd25"]).prompt_token_ids == [97]


def test_the_cache_salt_comes_from_the_call_or_the_prompt(processor: InputProcessor) -> None:
    params = SamplingParams()
    prompt = {"prompt": "a", "cache_salt": "inner"}
    assert processor.process(prompt, params, request_id="r").cache_keys == {"salt": "inner"}
    assert processor.process(prompt, params, request_id="r", cache_salt="x").cache_keys == {"salt": "x"}
    assert processor.process("a", params, request_id="r").cache_keys == {}
    with pytest.raises(InvalidParameter, match="cache_salt is 5"):
        processor.process({"prompt": "a", "cache_salt": 5}, params, request_id="r")


def test_best_of_asks_for_logprobs_that_the_user_does_not_see(processor: InputProcessor) -> None:
    ranked = process(processor, n=2, best_of=4)
    assert (ranked.sampling.logprobs, ranked.hides_logprobs) == (0, True)
    shown = process(processor, n=2, best_of=4, logprobs=0)
    assert (shown.sampling.logprobs, shown.hides_logprobs) == (0, False)
    assert process(processor, n=2, best_of=2).sampling.logprobs is None


def test_a_beam_search_becomes_a_request_with_its_width(processor: InputProcessor) -> None:
    params = BeamSearchParams(beam_width=4, max_tokens=9, num_return=2)
    request = processor.process("a", params, request_id="r")
    assert (request.beam, request.max_tokens, request.sampling.n) == (params, 9, 2)
    assert request.stop_token_ids == {258}
    with pytest.raises(InvalidParameter) as caught:
        processor.process("a", BeamSearchParams(beam_width=9, max_tokens=9), request_id="r")
    assert caught.value.parameter == "beam_width"


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("nan")])
def test_a_timeout_must_lie_ahead(processor: InputProcessor, timeout_s: float) -> None:
    with pytest.raises(InvalidParameter, match="timeout_s"):
        processor.process("a", SamplingParams(), request_id="r", timeout_s=timeout_s)


def test_a_model_without_a_tokenizer_takes_token_ids_only(info: EngineInfo) -> None:
    processor = InputProcessor(None, info, 0)
    assert process(processor, [1, 2]).prompt_token_ids == [1, 2]
    with pytest.raises(InvalidParameter, match="no tokenizer"):
        process(processor, "a")
    with pytest.raises(InvalidParameter, match="stop needs a tokenizer"):
        process(processor, [1], stop="x")


def test_templated_text_gets_no_second_bos(byte_level: Tokenizer, info: EngineInfo) -> None:
    """TPL-06."""
    from pageport.text.tokenizer_files import add_bos_and_eos

    backend = build_byte_level()
    backend.add_special_tokens(["<bos>"])
    add_bos_and_eos(backend, "<bos>", None)
    processor = InputProcessor(Tokenizer(backend, special_tokens={"bos_token": "<bos>"}), info, 0)
    assert process(processor, "a").prompt_token_ids == [256, 97]
    request = processor.process("<bos>a", SamplingParams(), request_id="r", add_special_tokens=False)
    assert request.prompt_token_ids == [256, 97]
