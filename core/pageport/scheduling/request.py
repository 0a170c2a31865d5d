"""``Request`` and its ``Sequence``s: what the scheduler keeps. Plain ints, no tensors."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pageport.cache.hash_chain import HashChain
from pageport.sampling.beam import BeamSearchParams
from pageport.scheduling.batch import TokenLogprobs


class Status(Enum):
    """Where a sequence stands."""

    WAITING = "waiting"  # owns no blocks: new, or preempted by recompute
    SWAPPED = "swapped"  # its blocks are in the host pool
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(Enum):
    """Why a sequence ended; the values are what OpenAI clients see."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"
    TIMEOUT = "timeout"  # its deadline passed


@dataclass(eq=False, slots=True, kw_only=True)
class Request:
    """One prompt and what is wanted of it. ``sampling`` is opaque to the scheduler, which hands it to the runner."""

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    sampling: Any
    num_sequences: int = 1  # n, or the beam width
    stop_token_ids: frozenset[int] = frozenset()  # a generated one of these ends the sequence (it is kept)
    priority: int = 0  # lower runs first
    arrival_time: float = 0.0  # seconds, scheduler's clock
    deadline: float | None = None  # seconds, scheduler's clock
    # The next step needs the sampled value on the host (grammar, Python logits processor; the scheduler adds beams).
    needs_host_token: bool = False
    # Logits of every prompt position are needed, so nothing is read from the prefix index.
    wants_prompt_logprobs: bool = False
    # The same for the hidden states, which are summed up.
    wants_pooled: bool = False
    # Tagged extra keys of the prefix hash: {"salt": "…", "adapter": "…"}.
    cache_keys: Mapping[str, str] = field(default_factory=dict)
    # Beam search when set: sequences are then beams.
    beam: BeamSearchParams | None = None
    sequences: list["Sequence"] = field(default_factory=list)
    num_cached_tokens: int | None = None  # prefix hit of the first scheduling
    queued_s: float | None = None  # seconds until the first scheduling; None: not scheduled yet, or told already
    # Logprobs of prompt positions 1, 2, …, collected over chunks; None: not wanted, or told already.
    prompt_scores: list[TokenLogprobs] | None = None
    # Sum over the prompt positions computed so far; None: not wanted, or told already.
    pooled: list[float] | None = None

    @property
    def needs_whole_prompt(self) -> bool:
        """Must every position of the prompt be computed, also those whose blocks are cached?"""
        return self.prompt_scores is not None or self.wants_pooled

    @property
    def is_finished(self) -> bool:
        return bool(self.sequences) and all(s.status is Status.FINISHED for s in self.sequences)


@dataclass(eq=False, slots=True, kw_only=True)
class Sequence:
    """One continuation of a request, with a block table of its own in the block manager."""

    sequence_id: int
    request: Request
    index: int  # choice index within the request
    token_ids: list[int]  # prompt and committed output
    token_limit: int  # it ends with this many tokens: max_tokens or the context
    rank: tuple[float, ...] = ()  # the policy's order, smaller first; unique
    status: Status = Status.WAITING
    row: int | None = None  # persistent row in the runner while RUNNING
    num_computed: int = 0  # tokens whose keys and values are written or being written by a step in flight
    num_pending: int = 0  # sampled tokens of steps in flight, not yet in token_ids
    steps_in_flight: int = 0
    num_preemptions: int = 0
    protection: int | None = None  # when it was preempted too often: it ranks before everyone protected later
    is_draining: bool = False  # chosen as a victim; preempted once its steps in flight are over
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None  # the stop token that ended it
    prefix_chain: HashChain | None = None  # digests made while it waits

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.request.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Tokens known or being sampled."""
        return len(self.token_ids) + self.num_pending
