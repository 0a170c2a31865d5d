"""From the fields of a request to ``SamplingParams`` or ``BeamSearchParams``."""

from collections.abc import Sequence
from typing import Any

from pageport.errors import InvalidParameter
from pageport.sampling.beam import BeamSearchParams
from pageport.sampling.params import LogitsProcessor, SamplingParams
from pageport.sampling.structured import StructuredOutput
from pageport.server.protocol.common import GenerationFields

# Fields that have the same name and meaning in ``SamplingParams``, whose defaults hold for absent ones.
SAMPLING_FIELDS = (
    "n",
    "best_of",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "min_tokens",
    "bad_words",
    "logit_bias",
    "allowed_token_ids",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "truncate_prompt_tokens",
)
BEAM_FIELDS = ("length_penalty", "ignore_eos", "include_stop_str_in_output", "temperature")
# Beam search neither samples nor reports logprobs. ``seed`` is let through: it makes no difference.
NOT_FOR_BEAMS = (
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "stop",
    "stop_token_ids",
    "min_tokens",
    "bad_words",
    "logit_bias",
    "allowed_token_ids",
    "logprobs",
    "prompt_logprobs",
    "truncate_prompt_tokens",
    "logits_processors",
)


def sampling_params(
    body: GenerationFields,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
    structured: StructuredOutput | None,
    logits_processors: Sequence[LogitsProcessor] | None = None,
) -> SamplingParams | BeamSearchParams:
    """Map a request; ``max_tokens`` None is the rest of the context, ``structured`` what ``structured_output`` says.

    Raises:
        InvalidParameter: fields contradict each other.
    """
    if body.use_beam_search:
        if structured is not None:
            raise InvalidParameter(
                f"{structured.parameter} cannot be combined with use_beam_search. Leave one of them out.",
                structured.parameter,
            )
        return _beam_search_params(body, max_tokens)
    if body.length_penalty is not None and body.length_penalty != 1.0:
        raise InvalidParameter(
            f"length_penalty is {body.length_penalty}, which only beam search uses. "
            "Set use_beam_search, or leave it out.",
            "length_penalty",
        )
    if body.stream and body.best_of is not None and body.best_of != body.num_choices:
        raise InvalidParameter(
            f"best_of is {body.best_of} with n {body.num_choices}: what is best is known at the end only. "
            "Leave out stream or best_of.",
            "best_of",
        )
    return SamplingParams(
        **_given(body, SAMPLING_FIELDS),
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        structured=structured,
        logits_processors=logits_processors,
    )


def _beam_search_params(body: GenerationFields, max_tokens: int | None) -> BeamSearchParams:
    for name in NOT_FOR_BEAMS:
        value = getattr(body, name, None)
        if value and value != getattr(SamplingParams(), name):
            raise InvalidParameter(f"{name} cannot be combined with use_beam_search. Leave one of them out.", name)
    if max_tokens is None:
        raise InvalidParameter("Beam search needs a length: set max_tokens.", "max_tokens")
    width = body.best_of or body.num_choices
    if width < body.num_choices:
        raise InvalidParameter(
            f"best_of is {width} but n asks for {body.num_choices} beams. Raise best_of or lower n.", "best_of"
        )
    return BeamSearchParams(
        beam_width=width, num_return=body.num_choices, max_tokens=max_tokens, **_given(body, BEAM_FIELDS)
    )


def _given(body: GenerationFields, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(body, name)) is not None}
