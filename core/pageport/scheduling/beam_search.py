"""``BeamGroup``: beam search over the sequences of one request, with the rules of transformers' ``_beam_search``."""

import math
from collections.abc import Sequence as ListOf
from typing import NamedTuple

from pageport.sampling.beam import BeamSearchParams
from pageport.scheduling.batch import TokenLogprobs
from pageport.scheduling.request import Request, Sequence


class Beam(NamedTuple):
    """A running hypothesis."""

    sequence: Sequence
    logprob: float  # sum over its generated tokens


class Continuation(NamedTuple):
    """A running beam's successor: ``parent`` with one more token."""

    parent: Sequence
    token_id: int
    logprob: float


class Hypothesis(NamedTuple):
    """A finished beam, scored."""

    score: float
    token_ids: list[int]  # generated ones
    logprob: float
    stop_token_id: int | None  # None: it ran into the length limit


def num_candidates(beam_width: int, num_stop_tokens: int) -> int:
    """Return how many of a beam's likeliest tokens the search looks at: enough to go on when every stop is among them.

    transformers keeps ``max(2, 1 + number of end tokens) * beam_width``.
    """
    return max(2, 1 + num_stop_tokens) * beam_width


class BeamGroup:
    """The beams of one request.

    ``beams`` run, best first; ``spares`` are the request's other sequences, which own no blocks. The search is over
    the candidates of all beams: the best non-stopping ones run on, stopping ones among the best ``beam_width`` become
    hypotheses.
    """

    def __init__(self, request: Request, carrier: Sequence, spares: list[Sequence], max_blocks: tuple[int, ...]):
        assert isinstance(request.beam, BeamSearchParams)
        self.request = request
        self.params = request.beam
        self.beams = [Beam(carrier, 0.0)]
        self.spares = spares
        self.max_blocks = max_blocks  # what the group may come to hold, by cache group
        self.has_forked = False  # the carrier's prompt is computed and beams exist
        self.hypotheses: list[Hypothesis] = []  # best first

    @property
    def is_in_flight(self) -> bool:
        return self.beams[0].sequence.steps_in_flight > 0

    def advance(self, candidates: ListOf[TokenLogprobs]) -> list[Continuation]:
        """Take one step: ``candidates[i]`` are the likeliest next tokens of ``beams[i]``, after the chosen one.

        Returns:
            The beams of the next step, best first; nothing when the search is over.
        """
        width, stops = self.params.beam_width, self.request.stop_token_ids
        num_generated = len(self.beams[0].sequence.token_ids) - len(self.request.prompt_token_ids) + 1
        is_last = len(self.beams[0].sequence.token_ids) + 1 >= self.beams[0].sequence.token_limit
        ranked = self._ranked(candidates)[: num_candidates(width, len(stops))]
        running: list[Continuation] = []
        for place, candidate in enumerate(ranked):
            if is_last or candidate.token_id in stops:
                if place < width:
                    self._finish(candidate, num_generated)
            elif len(running) < width:
                running.append(candidate)
        return running if running and self._can_improve(running[0].logprob, num_generated) else []

    def best(self) -> list[Hypothesis]:
        """Return the hypotheses asked for, best first."""
        return self.hypotheses[: num_returned(self.request)]

    def _ranked(self, candidates: ListOf[TokenLogprobs]) -> list[Continuation]:
        """All beams' candidates, best first; entry 0 of each is the sampled token, told again among the others."""
        pool = [
            Continuation(beam.sequence, token_id, beam.logprob + logprob)
            for beam, listed in zip(self.beams, candidates, strict=True)
            for token_id, logprob in zip(listed.token_ids[1:], listed.logprobs[1:], strict=True)
        ]
        pool.sort(key=lambda continuation: -continuation.logprob)
        return pool

    def _finish(self, candidate: Continuation, num_generated: int) -> None:
        token_ids = candidate.parent.token_ids[len(self.request.prompt_token_ids) :]
        is_stop = candidate.token_id in self.request.stop_token_ids
        self.hypotheses.append(
            Hypothesis(
                score=self._score(candidate.logprob, num_generated),
                token_ids=[*token_ids, candidate.token_id],
                logprob=candidate.logprob,
                stop_token_id=candidate.token_id if is_stop else None,
            )
        )
        self.hypotheses.sort(key=lambda hypothesis: -hypothesis.score)
        del self.hypotheses[self.params.beam_width :]

    def _can_improve(self, best_logprob: float, num_generated: int) -> bool:
        """Say whether a running beam could still enter the hypotheses, judged at its present length."""
        if len(self.hypotheses) < self.params.beam_width:
            return True
        if self.params.early_stopping:
            return False
        return self._score(best_logprob, num_generated) > self.hypotheses[-1].score

    def _score(self, logprob: float, num_generated: int) -> float:
        return logprob / math.pow(num_generated, self.params.length_penalty)


def num_returned(request: Request) -> int:
    """Return how many of a request's sequences its client hears of."""
    if request.beam is None:
        return request.num_sequences
    return min(request.beam.num_return or request.num_sequences, request.num_sequences)
