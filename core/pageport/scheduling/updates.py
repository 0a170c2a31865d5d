"""``SequenceUpdate``: what a step meant for one sequence."""

from dataclasses import dataclass

from pageport.scheduling.batch import TokenLogprobs
from pageport.scheduling.request import Sequence


@dataclass(slots=True)
class SequenceUpdate:
    """New tokens of a sequence, or its end (``sequence.finish_reason``); each end is told once.

    ``logprobs`` has one entry a token where they were asked for. ``prompt_logprobs`` comes with the first token of
    a request that wants them: one entry a prompt token, the first one None; ``pooled`` likewise. A beam search is
    told once, at its end: its best hypotheses, best first, with ``cumulative_logprob``.
    """

    sequence: Sequence
    new_token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    pooled: list[float] | None = None
    error: str | None = None
    cumulative_logprob: float | None = None
