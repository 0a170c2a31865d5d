"""What users get back: the same names and meanings as vLLM's offline API."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Logprob(NamedTuple):
    """One candidate token at one position."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclass(slots=True, kw_only=True)
class CompletionOutput:
    """One choice of a request. ``stop_reason`` is the stop string or stop token id that ended it, None for EOS."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[Mapping[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """A request's state: cumulative while streaming, final when ``finished``."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    prompt_logprobs: list[Mapping[int, Logprob] | None] | None = None
    finished: bool = False
    num_cached_tokens: int | None = None
    pooled: list[float] | None = None
    error: str | None = None


@dataclass(slots=True, kw_only=True)
class ChoiceDelta:
    """What is new of one choice since its last delta: every field but ``cumulative_logprob`` is an addition.

    ``text`` may be empty while a character or a possible stop string is incomplete. ``finish_reason`` is set in the
    last delta of a choice. ``prompt_logprobs``, ``pooled`` and ``num_cached_tokens`` come once for a request, with
    choice 0; ``queued_s``, the seconds that it waited before it ran, comes once, with any.
    """

    request_id: str
    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Mapping[int, Logprob]] | None = None
    cumulative_logprob: float | None = None  # of all tokens so far
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    prompt_logprobs: list[Mapping[int, Logprob] | None] | None = None
    num_cached_tokens: int | None = None
    queued_s: float | None = field(default=None, compare=False)
    pooled: list[float] | None = None
    error: str | None = None
