"""``SamplingParams``: how the tokens of a request are chosen. No torch here: the server process imports it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pageport.sampling.pooling import Pooling
from pageport.sampling.structured import StructuredOutput

# (output token ids so far, logits float32 [vocab]) -> logits; runs on the host, in the engine's process.
LogitsProcessor = Callable[[list[int], Any], Any]


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """Names and meanings as in vLLM's class of this name; ranges are checked by ``validate``.

    Applied in this order: structured output, allowed token ids, bad words, min_tokens, logit bias, logits processors;
    repetition, frequency and presence penalties; then, unless greedy, temperature, min_p, top_k, top_p.
    """

    n: int = 1
    best_of: int | None = None  # sample this many, return the n with the highest mean logprob
    temperature: float = 1.0  # 0: greedy
    top_p: float = 1.0
    top_k: int = 0  # 0 or -1: off
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: Sequence[str] | str | None = None
    stop_token_ids: Sequence[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16  # None: the rest of the context
    min_tokens: int = 0
    bad_words: Sequence[str] | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    logprobs: int | None = None  # -1: the whole vocabulary
    prompt_logprobs: int | None = None
    logits_processors: Sequence[LogitsProcessor] | None = None
    structured: StructuredOutput | None = None  # the form the output must have
    pooling: Pooling | None = None  # sum up the prompt's hidden states, for an embedding
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None  # keep the last k; -1: what the model takes

    @property
    def stop_strings(self) -> list[str]:
        """``stop`` as a list, empty for none."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())
