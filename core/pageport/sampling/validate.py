"""Check sampling and beam search parameters at the edge. No torch here.

The ranges, where OpenAI's and vLLM's differ: ``temperature`` 0 to 100 (OpenAI stops at 2, vLLM nowhere; below 1e-5 it
means greedy); ``repetition_penalty`` 0.01 to 100, so that no finite logit overflows; ``seed`` any 64-bit integer,
signed or not; ``n`` and ``best_of`` up to 16384. Everything else is as both define it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import cast

from pageport.errors import InvalidParameter
from pageport.sampling.beam import BeamSearchParams
from pageport.sampling.params import SamplingParams
from pageport.sampling.pooling import POOLINGS
from pageport.sampling.structured import KINDS, StructuredOutput

MAX_SEQUENCES = 16384  # n, best_of and beam_width
MAX_STRUCTURED_CHARACTERS = 128 * 1024  # of a schema, regex or grammar, or of all choices together


def validate(params: SamplingParams, vocab_size: int | None = None) -> None:
    """Check every field; with ``vocab_size`` also that token ids exist in the model.

    Raises:
        InvalidParameter: a field has an impossible value, or two fields contradict each other.
    """
    _check_numbers(params)
    _check_flags(params)
    _check_stop(params)
    _check_token_ids(params, vocab_size)
    _check_combinations(params)
    if params.structured is not None:
        _check_structured(params.structured)
    if params.pooling is not None:
        _check_pooling(params)


def _check_pooling(params: SamplingParams) -> None:
    if params.pooling not in POOLINGS:
        raise _invalid("pooling", params.pooling, f"it must be {' or '.join(POOLINGS)}.")
    if params.n != 1 or params.best_of is not None:
        raise _invalid("pooling", params.pooling, "a prompt has one embedding. Leave out n and best_of.")


def validate_beam(params: BeamSearchParams) -> None:
    """Check every field of a beam search.

    Raises:
        InvalidParameter: a field has an impossible value, or two fields contradict each other.
    """
    _integer("beam_width", params.beam_width, 1, MAX_SEQUENCES)
    _integer("max_tokens", params.max_tokens, 1)
    _number("length_penalty", params.length_penalty, -10, 10)
    _number("temperature", params.temperature, 0, 100)
    for name in ("early_stopping", "ignore_eos", "include_stop_str_in_output"):
        _flag(name, getattr(params, name))
    if params.num_return is None:
        return
    _integer("num_return", params.num_return, 1)
    if params.num_return > params.beam_width:
        raise _invalid(
            "num_return",
            params.num_return,
            f"only beam_width = {params.beam_width} beams are kept. Lower num_return or raise beam_width.",
        )


def _check_numbers(params: SamplingParams) -> None:
    _integer("n", params.n, 1, MAX_SEQUENCES)
    if params.best_of is not None:
        _integer("best_of", params.best_of, 1, MAX_SEQUENCES)
    _number("temperature", params.temperature, 0, 100)
    _number("top_p", params.top_p, 0, 1)
    if params.top_p == 0:
        raise _invalid(
            "top_p", params.top_p, "it must be above 0, at most 1. For the likeliest token use temperature 0."
        )
    _integer("top_k", params.top_k, -1)
    _number("min_p", params.min_p, 0, 1)
    _number("presence_penalty", params.presence_penalty, -2, 2)
    _number("frequency_penalty", params.frequency_penalty, -2, 2)
    _number("repetition_penalty", params.repetition_penalty, 0.01, 100)
    if params.seed is not None:
        _integer("seed", params.seed, -(2**63), 2**64 - 1)
    if params.max_tokens is not None:
        _integer("max_tokens", params.max_tokens, 1)
    _integer("min_tokens", params.min_tokens, 0)
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(params, name) is not None:
            _integer(name, getattr(params, name), -1)
    if params.truncate_prompt_tokens is not None:
        _integer("truncate_prompt_tokens", params.truncate_prompt_tokens, -1)
        if params.truncate_prompt_tokens == 0:
            raise _invalid("truncate_prompt_tokens", 0, "it must be at least 1, or -1 for the model's context.")


def _check_flags(params: SamplingParams) -> None:
    for name in (
        "include_stop_str_in_output",
        "ignore_eos",
        "detokenize",
        "skip_special_tokens",
        "spaces_between_special_tokens",
    ):
        _flag(name, getattr(params, name))
    if params.logits_processors is None:
        return
    for processor in _items("logits_processors", params.logits_processors):
        if not callable(processor):
            raise _invalid(
                "logits_processors", processor, "each must be a function (output token ids, logits) -> logits."
            )


def _check_stop(params: SamplingParams) -> None:
    stop = [params.stop] if isinstance(params.stop, str) else params.stop
    for name, strings in (("stop", stop), ("bad_words", params.bad_words)):
        for string in _items(name, strings or ()):
            if not isinstance(string, str) or not string:
                raise _invalid(name, string, "it must hold strings of at least one character.")


def _check_token_ids(params: SamplingParams, vocab_size: int | None) -> None:
    last = None if vocab_size is None else vocab_size - 1
    for name in ("stop_token_ids", "allowed_token_ids"):
        for token_id in _items(name, getattr(params, name) or ()):
            _integer(name, token_id, 0, last)
    if params.allowed_token_ids is not None and not params.allowed_token_ids:
        raise _invalid(
            "allowed_token_ids", params.allowed_token_ids, "at least one token must be allowed. Leave it out."
        )
    if params.logit_bias is None:
        return
    if not isinstance(params.logit_bias, Mapping):
        raise _invalid("logit_bias", params.logit_bias, "it must map token ids to numbers from -100 to 100.")
    for token_id, bias in params.logit_bias.items():
        _integer("logit_bias", token_id, 0, last, what="a token id")
        _number("logit_bias", bias, -100, 100, what=f"the bias of token {token_id}")


def _check_combinations(params: SamplingParams) -> None:
    if params.best_of is not None and params.best_of < params.n:
        raise _invalid("best_of", params.best_of, f"fewer than n = {params.n} are sampled. Raise best_of or lower n.")
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise _invalid(
            "min_tokens",
            params.min_tokens,
            f"max_tokens = {params.max_tokens} ends the output before. Lower min_tokens or raise max_tokens.",
        )
    if params.stop and not params.detokenize:
        raise _invalid("stop", params.stop, "stop strings are found in text. Set detokenize, or use stop_token_ids.")


def _check_structured(structured: object) -> None:
    """Check what can be without a compiler; errors name the field that the client sent."""
    if not isinstance(structured, StructuredOutput):
        raise _invalid("structured", structured, "it must be a StructuredOutput.")
    name = structured.parameter
    if len(structured.given) != 1:
        given = ", ".join(structured.given) or "nothing"
        raise InvalidParameter(f"{name} gives {given}; it must give exactly one of {', '.join(KINDS)}.", name)
    kind = structured.given[0]
    value = getattr(structured, kind)
    if kind == "choice":
        _check_choices(name, value)
    elif kind == "json_object":
        _flag(name, value)
    elif not isinstance(value, str) or not value.strip():
        raise _invalid(name, value, f"its {kind} must be a text that is not empty.")
    _flag(name, structured.allows_whitespace)
    length = len(value) if isinstance(value, str) else sum(map(len, value)) if kind == "choice" else 0
    if length > MAX_STRUCTURED_CHARACTERS:
        raise InvalidParameter(
            f"{name} has {length} characters; at most {MAX_STRUCTURED_CHARACTERS} are read. Shorten it.", name
        )
    if structured.json_schema is not None:
        _check_schema(name, structured.json_schema)


def _check_choices(name: str, choices: object) -> None:
    if not isinstance(choices, tuple) or not choices:
        raise _invalid(name, choices, "its choices must be one text or more.")
    for choice in choices:
        if not isinstance(choice, str) or not choice:
            raise _invalid(name, choice, "a choice must be a text that is not empty.")


def _check_schema(name: str, text: str) -> None:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidParameter(f"The schema of {name} is no JSON: {error}.", name) from None
    if not isinstance(schema, dict | bool):
        raise _invalid(name, schema, "a schema must be an object, true or false.")


def _number(name: str, value: object, low: float, high: float, what: str | None = None) -> None:
    # A NaN fails both comparisons; an integer too large for a float is compared all the same.
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if not is_number or not low <= cast(float, value) <= high:
        raise _invalid(name, value, f"{what or 'it'} must be a number from {low:g} to {high:g}.")


def _integer(name: str, value: object, low: int, high: int | None = None, what: str | None = None) -> None:
    wanted = f"{what or 'it'} must be an integer of at least {low}" + ("." if high is None else f" and at most {high}.")
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise _invalid(name, value, wanted)
    if int(value) < low or (high is not None and int(value) > high):
        raise _invalid(name, value, wanted)


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise _invalid(name, value, "it must be true or false.")


def _items(name: str, values: object) -> Iterable[object]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise _invalid(name, values, "it must be a list.")
    return values


def _invalid(name: str, value: object, advice: str) -> InvalidParameter:
    shown = repr(value)
    if len(shown) > 60:
        shown = shown[:57] + "..."
    return InvalidParameter(f"{name} is {shown}; {advice}", parameter=name)
