"""``InputProcessor``: what a user asks, checked and in tokens."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, NamedTuple

from pageport.engine.limits import (
    MAX_BAD_WORDS,
    MAX_LOGPROBS,
    MAX_STOP_CHARACTERS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
)
from pageport.engine.messages import EngineInfo, EngineRequest
from pageport.errors import InvalidParameter, RequestTooLong
from pageport.sampling.beam import BeamSearchParams
from pageport.sampling.params import SamplingParams
from pageport.sampling.validate import validate, validate_beam
from pageport.text.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Mapping[str, Any]

PROMPT_KEYS = ("prompt", "prompt_token_ids", "cache_salt")


class _Prompt(NamedTuple):
    token_ids: list[int]
    cache_salt: str | None


class InputProcessor:
    """Turns prompts and parameters into ``EngineRequest``s, or says what is wrong with them.

    Everything that the engine cannot serve is refused here, before it costs anything there.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        info: EngineInfo,
        seed_source: int | random.Random,
        max_logprobs: int = MAX_LOGPROBS,
    ) -> None:
        """Keep what requests are checked against.

        Args:
            tokenizer: None: prompts must come as token ids, and nothing that needs text is served.
            info: of the engine that will run the requests.
            seed_source: where requests that bring no seed get theirs: a generator, or the seed of one.
            max_logprobs: most logprobs a token; -1: no bound, and a request may ask for -1, the whole vocabulary.
        """
        self._tokenizer = tokenizer
        self._info = info
        self._random = random.Random(seed_source) if isinstance(seed_source, int) else seed_source
        self._max_logprobs = max_logprobs
        # Ids that only pad the output matrix are no tokens.
        self._vocab_size = min(info.vocab_size, tokenizer.vocab_size) if tokenizer is not None else info.vocab_size

    def process(
        self,
        prompt: Prompt,
        params: SamplingParams | BeamSearchParams,
        *,
        request_id: str,
        priority: int = 0,
        timeout_s: float | None = None,
        cache_salt: str | None = None,
        add_special_tokens: bool = True,
    ) -> EngineRequest:
        """Check and encode one request.

        Args:
            prompt: text, token ids, ``{"prompt": text}`` or ``{"prompt_token_ids": ids}``; the last two may have a
                ``cache_salt``.
            params: how to choose tokens.
            request_id: unique among the requests that run.
            priority: lower runs first.
            timeout_s: seconds from arrival until the request ends as timed out.
            cache_salt: only requests of the same salt share cached prefixes.
            add_special_tokens: off for text of a chat template, which writes them itself.

        Raises:
            InvalidParameter: names the field.
            RequestTooLong: prompt and output do not fit in the context or in the cache.
        """
        beam = params if isinstance(params, BeamSearchParams) else None
        if isinstance(params, BeamSearchParams):
            validate_beam(params)
            sampling = _of_beam(params)
        else:
            sampling = params
        validate(sampling, self._vocab_size)
        self._check_structured(sampling)
        self._check_caps(sampling, beam)
        read = self._read(prompt, add_special_tokens)
        token_ids = self._truncate(read.token_ids, sampling)
        max_tokens = self._max_tokens(len(token_ids), sampling)
        if timeout_s is not None and not timeout_s > 0:
            raise InvalidParameter(f"timeout_s is {timeout_s}; it must be above 0. Leave it out.", "timeout_s")
        salt = cache_salt if cache_salt is not None else read.cache_salt
        ranks = sampling.best_of is not None and sampling.best_of > sampling.n and sampling.logprobs is None
        return EngineRequest(
            request_id=request_id,
            prompt_token_ids=token_ids,
            sampling=replace(sampling, logprobs=0) if ranks else sampling,
            max_tokens=max_tokens,
            seed=sampling.seed if sampling.seed is not None else self._random.getrandbits(63),
            stop_token_ids=self._stop_token_ids(sampling),
            bad_words_token_ids=self._bad_words(sampling),
            beam=beam,
            priority=priority,
            timeout_s=timeout_s,
            cache_keys={"salt": salt} if salt else {},
            hides_logprobs=ranks,
        )

    def _check_caps(self, params: SamplingParams, beam: BeamSearchParams | None) -> None:
        sequences = ("beam_width", beam.beam_width) if beam else ("best_of", params.best_of) if params.best_of else None
        _check_cap(*(sequences or ("n", params.n)), self._info.max_num_seqs, "sequences run at once")
        for name in ("logprobs", "prompt_logprobs"):
            self._check_logprobs(name, getattr(params, name))
        stops = params.stop_strings
        _check_cap("stop", len(stops), MAX_STOP_STRINGS, "stop strings a request")
        _check_cap("stop", max(map(len, stops), default=0), MAX_STOP_CHARACTERS, "characters a stop string")
        _check_cap("stop_token_ids", len(params.stop_token_ids or ()), MAX_STOP_TOKEN_IDS, "stop tokens a request")
        _check_cap("bad_words", len(params.bad_words or ()), MAX_BAD_WORDS, "bad words a request")
        if self._tokenizer is None:
            for name in ("stop", "bad_words"):
                if getattr(params, name):
                    raise InvalidParameter(f"{name} needs a tokenizer, and this model has none. Leave it out.", name)

    def _check_structured(self, params: SamplingParams) -> None:
        if params.structured is None:
            return
        name = params.structured.parameter
        if self._tokenizer is None or not self._tokenizer.is_bytewise:
            raise InvalidParameter(
                f"{name} needs a tokenizer whose tokens are bytes of the text, and this model has none. Leave it out.",
                name,
            )
        if not self._info.eos_token_ids:
            raise InvalidParameter(
                f"{name} needs a token that ends the output, and this model has none. Leave it out.", name
            )

    def _check_logprobs(self, name: str, wanted: int | None) -> None:
        if wanted is None or self._max_logprobs == -1 or 0 <= wanted <= self._max_logprobs:
            return
        asks = "the whole vocabulary" if wanted == -1 else str(wanted)
        raise InvalidParameter(
            f"{name} asks for {asks}; at most {self._max_logprobs} a token are given. Lower it.", name
        )

    def _read(self, prompt: Prompt, add_special_tokens: bool) -> _Prompt:
        salt = None
        if isinstance(prompt, Mapping):
            salt = prompt.get("cache_salt")
            if salt is not None and not isinstance(salt, str):
                raise InvalidParameter(f"cache_salt is {salt!r:.60}; it must be a string.", "cache_salt")
            for key in prompt:
                if key not in PROMPT_KEYS:
                    raise InvalidParameter(
                        f"A prompt has the key {key!r:.60}, which is not supported; it may have "
                        f"{', '.join(PROMPT_KEYS)}. Leave it out.",
                        str(key),
                    )
            if ("prompt" in prompt) == ("prompt_token_ids" in prompt):
                raise InvalidParameter(
                    f"A prompt has the keys {sorted(prompt)}. Give either prompt or prompt_token_ids.", "prompt"
                )
            prompt = prompt["prompt_token_ids"] if "prompt_token_ids" in prompt else prompt["prompt"]
        token_ids = self._encode(prompt, add_special_tokens) if isinstance(prompt, str) else self._checked_ids(prompt)
        if not token_ids:
            # A model that was trained with one can start from its first token alone.
            bos = self._tokenizer.bos_token_id if self._tokenizer is not None else None
            if bos is None:
                raise InvalidParameter(
                    "The prompt is empty, and this model has no token to begin a text with. Give at least one token.",
                    "prompt",
                )
            token_ids = [bos]
        return _Prompt(token_ids, salt)

    def _encode(self, text: str, add_special_tokens: bool) -> list[int]:
        if self._tokenizer is None:
            raise InvalidParameter("This model has no tokenizer. Give the prompt as token ids.", "prompt")
        return self._tokenizer.encode(text, add_special_tokens)

    def _checked_ids(self, prompt: Any) -> list[int]:
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
            raise InvalidParameter(
                f"The prompt is {prompt!r:.60}, a {type(prompt).__name__}. Give text or a list of token ids.", "prompt"
            )
        return [self._checked_id(position, token_id) for position, token_id in enumerate(prompt)]

    def _checked_id(self, position: int, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise InvalidParameter(
                f"Token {position} of the prompt is {value!r:.60}; token ids are whole numbers.", "prompt"
            )
        token_id = int(value)
        if not 0 <= token_id < self._info.vocab_size:
            raise InvalidParameter(
                f"Token {position} of the prompt is {token_id}; this model's ids go from 0 to "
                f"{self._info.vocab_size - 1}.",
                "prompt",
            )
        return token_id

    def _truncate(self, token_ids: list[int], params: SamplingParams) -> list[int]:
        keep = params.truncate_prompt_tokens
        if keep is None:
            return token_ids
        if keep == -1:
            keep = max(1, self._room() - (params.max_tokens or 1))
        return token_ids[-keep:]

    def _room(self) -> int:
        return min(self._info.max_model_len, self._info.max_request_tokens)

    def _max_tokens(self, num_prompt_tokens: int, params: SamplingParams) -> int:
        """Return how many tokens may be generated, or say why not that many."""
        context, room = self._info.max_model_len, self._room()
        wanted = params.max_tokens if params.max_tokens is not None else max(params.min_tokens, 1)
        asks = f"max_tokens asks for {wanted}" if params.max_tokens is not None else f"at least {wanted} is generated"
        blocks = f"{max(self._info.num_blocks, default=0)} blocks of {self._info.block_size}"
        if num_prompt_tokens + wanted > context:
            is_cut = self._info.max_request_tokens == context
            raise RequestTooLong(
                f"This model's context is {context} tokens{f', what the KV cache holds ({blocks})' if is_cut else ''}; "
                f"the prompt has {num_prompt_tokens} and {asks}, {num_prompt_tokens + wanted} together. "
                f"{_way_out(context - num_prompt_tokens)}",
                "max_tokens" if num_prompt_tokens < context else "prompt",
            )
        if num_prompt_tokens + wanted > room:
            raise RequestTooLong(
                f"The KV cache holds {room} tokens of one request ({blocks}); the "
                f"prompt has {num_prompt_tokens} and {asks}, {num_prompt_tokens + wanted} together. "
                f"{_way_out(room - num_prompt_tokens)}",
                "max_tokens" if num_prompt_tokens < room else "prompt",
            )
        return params.max_tokens if params.max_tokens is not None else room - num_prompt_tokens

    def _stop_token_ids(self, params: SamplingParams) -> frozenset[int]:
        explicit = frozenset(int(token_id) for token_id in params.stop_token_ids or ())
        # An output that has to have a form ends when it is complete.
        is_endless = params.ignore_eos and params.structured is None
        return explicit if is_endless else explicit | self._info.eos_token_ids

    def _bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """Encode each word as it stands at the beginning of a text, and after a space."""
        if not params.bad_words or self._tokenizer is None:
            return ()
        words = [word.lstrip(" ") or word for word in params.bad_words]
        spellings = [tuple(self._tokenizer.encode(p + word, False)) for word in words for p in ("", " ")]
        return tuple(dict.fromkeys(ids for ids in spellings if ids))


def _of_beam(params: BeamSearchParams) -> SamplingParams:
    return SamplingParams(
        n=params.num_return or params.beam_width,
        max_tokens=params.max_tokens,
        temperature=params.temperature,
        ignore_eos=params.ignore_eos,
        include_stop_str_in_output=params.include_stop_str_in_output,
    )


def _check_cap(name: str, value: int, limit: int, what: str) -> None:
    if value > limit:
        raise InvalidParameter(f"{name} asks for {value}; at most {limit} {what}. Lower it.", name)


def _way_out(left: int) -> str:
    return f"Lower max_tokens to at most {left}, or shorten the prompt." if left > 0 else "Shorten the prompt."
