"""What crosses the border between an API process and the engine: plain picklable values, no torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pageport.cache.block_pool import BlockState as BlockState
from pageport.errors import PageportError
from pageport.sampling.beam import BeamSearchParams
from pageport.sampling.params import SamplingParams
from pageport.scheduling.batch import TokenLogprobs
from pageport.scheduling.request import FinishReason as FinishReason
from pageport.scheduling.stats import SchedulerStats


@dataclass(frozen=True, kw_only=True)
class EngineRequest:
    """A checked request in tokens; text is the client's business.

    ``bad_words_token_ids`` are the encodings of ``sampling.bad_words``. ``stop_token_ids`` already holds the model's
    end tokens, unless ``ignore_eos`` is set and the output may have any form. ``seed`` is always set: the client draws
    one when the user gave none.
    ``hides_logprobs``: ``sampling.logprobs`` is set only to rank best_of samples, and the user does not see them.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams
    max_tokens: int
    seed: int
    stop_token_ids: frozenset[int] = frozenset()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    beam: BeamSearchParams | None = None
    priority: int = 0
    timeout_s: float | None = None
    cache_keys: Mapping[str, str] = field(default_factory=dict)
    hides_logprobs: bool = False

    @property
    def num_choices(self) -> int:
        """Sequences that will be told of: samples, or the beams to return."""
        return self.sampling.n if self.beam is not None else self.sampling.best_of or self.sampling.n


@dataclass(slots=True, kw_only=True)
class SequenceOutput:
    """New tokens of one sequence. ``finish_reason`` is a ``FinishReason`` value, None while it runs.

    ``stop_token_id`` is the stop token that ended it (the last of ``token_ids``). ``logprobs`` has one entry a token.
    The first output of a request's sequence 0 carries ``prompt_logprobs`` (first entry None), ``pooled`` and
    ``num_cached_tokens``. The first output of any of its sequences carries ``queued_s``, the seconds that it waited
    before it ran. Beam sequences come once, finished, best first, with ``cumulative_logprob``.
    """

    request_id: str
    index: int
    token_ids: list[int]
    finish_reason: str | None = None
    stop_token_id: int | None = None
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_cached_tokens: int | None = None
    queued_s: float | None = field(default=None, compare=False)
    pooled: list[float] | None = None
    cumulative_logprob: float | None = None
    error: str | None = None


# The engine adds no counters of its own.
EngineStats = SchedulerStats


@dataclass(slots=True, kw_only=True)
class StepOutputs:
    """The one message a step sends to its client; ``refused`` tells by request why it will not run."""

    outputs: list[SequenceOutput]
    stats: EngineStats
    refused: Mapping[str, PageportError] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class EngineInfo:
    """What a client must know of the engine to check requests."""

    model_name: str
    architecture: str
    vocab_size: int
    max_model_len: int
    max_request_tokens: int  # what the KV cache can hold of one sequence
    max_num_seqs: int
    block_size: int
    num_blocks: tuple[int, ...]
    eos_token_ids: frozenset[int]
    dtype: str
    backend: str
    summary: tuple[str, ...] = ()  # start-up lines for people

    def with_end_tokens(self, token_ids: Iterable[int]) -> "EngineInfo":
        """Return the same with more end tokens: a model ends at any that its config or its tokenizer names."""
        return replace(self, eos_token_ids=self.eos_token_ids.union(token_ids))
