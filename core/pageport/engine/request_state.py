"""``RequestState``: one request's outputs as text, from tokens."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from pageport.engine.messages import EngineRequest, SequenceOutput
from pageport.engine.outputs import ChoiceDelta, CompletionOutput, Logprob, RequestOutput
from pageport.scheduling.batch import TokenLogprobs
from pageport.text.detokenizer import IncrementalDetokenizer
from pageport.text.stop import StopMatcher
from pageport.text.tokenizer import Tokenizer


class _Reading(NamedTuple):
    """What new tokens say."""

    text: str
    num_tokens: int  # tokens up to the end of a stop string; later ones are not delivered
    matched: str | None = None


class Choice:
    """One sequence of a request: everything delivered of it so far."""

    def __init__(self, index: int, request: EngineRequest, tokenizer: Tokenizer | None) -> None:
        params = request.sampling
        self.index = index
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[Mapping[int, Logprob]] | None = None
        self.cumulative_logprob: float | None = None
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None
        self.error: str | None = None
        self._request = request
        self._tokenizer = tokenizer
        self._explicit_stops = frozenset(params.stop_token_ids or ())
        self._detokenizer = (
            IncrementalDetokenizer(
                tokenizer,
                request.prompt_token_ids,
                params.skip_special_tokens,
                params.spaces_between_special_tokens,
            )
            if tokenizer is not None and params.detokenize
            else None
        )
        stops = params.stop_strings
        self._matcher = StopMatcher(stops, params.include_stop_str_in_output) if stops else None

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def mean_logprob(self) -> float:
        """What best_of ranks by."""
        if self.error is not None or self.cumulative_logprob is None or not self.token_ids:
            return -math.inf
        return self.cumulative_logprob / len(self.token_ids)

    def take(self, output: SequenceOutput) -> ChoiceDelta:
        """Add new tokens and return what is new to show."""
        reading = self._read(output)
        token_ids = output.token_ids[: reading.num_tokens]
        logprobs = self._take_logprobs(output, reading.num_tokens)
        if reading.matched is not None:
            self.finish_reason, self.stop_reason = "stop", reading.matched
        elif output.finish_reason is not None:
            self.finish_reason = output.finish_reason
            self.stop_reason = output.stop_token_id if output.stop_token_id in self._explicit_stops else None
        self.error = output.error
        self.texts.append(reading.text)
        self.token_ids += token_ids
        return ChoiceDelta(
            request_id=output.request_id,
            index=self.index,
            text=reading.text,
            token_ids=token_ids,
            logprobs=logprobs,
            cumulative_logprob=self.cumulative_logprob,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            error=self.error,
        )

    def whole(self, index: int) -> ChoiceDelta:
        """Return everything as one delta of choice ``index``."""
        return ChoiceDelta(
            request_id=self._request.request_id,
            index=index,
            text="".join(self.texts),
            token_ids=list(self.token_ids),
            logprobs=None if self.logprobs is None else list(self.logprobs),
            cumulative_logprob=self.cumulative_logprob,
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            error=self.error,
        )

    def snapshot(self, index: int) -> CompletionOutput:
        """Return everything as a result."""
        return CompletionOutput(
            index=index,
            text="".join(self.texts),
            token_ids=list(self.token_ids),
            cumulative_logprob=self.cumulative_logprob,
            logprobs=None if self.logprobs is None else list(self.logprobs),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
        )

    def _read(self, output: SequenceOutput) -> _Reading:
        count = len(output.token_ids)
        if self._detokenizer is None:
            return _Reading("", count)
        shown = output.token_ids
        if output.stop_token_id is not None and output.stop_token_id not in self._explicit_stops:
            # The model's own end token is no text. One that the user named is, unless it is special.
            shown = shown[:-1]
        ends = output.finish_reason is not None
        if self._matcher is None:
            text = self._detokenizer.push(shown)
            return _Reading(text + self._detokenizer.flush() if ends else text, count)
        return self._read_matching(self._matcher, self._detokenizer, shown, count, ends)

    def _read_matching(
        self, matcher: StopMatcher, detokenizer: IncrementalDetokenizer, shown: list[int], count: int, ends: bool
    ) -> _Reading:
        texts = []
        for number, token_id in enumerate(shown, start=1):
            text = detokenizer.push((token_id,))
            if len(self.token_ids) + number <= self._request.sampling.min_tokens:
                texts.append(text)
                continue
            step = matcher.push(text)
            texts.append(step.text)
            if step.matched is not None:
                return _Reading("".join(texts), number, step.matched)
        if ends:
            step = matcher.push(detokenizer.flush())
            texts.append(step.text)
            if step.matched is not None:
                return _Reading("".join(texts), count, step.matched)
            texts.append(matcher.flush())
        return _Reading("".join(texts), count)

    def _take_logprobs(self, output: SequenceOutput, num_tokens: int) -> list[Mapping[int, Logprob]] | None:
        if output.cumulative_logprob is not None:
            self.cumulative_logprob = output.cumulative_logprob
        if output.logprobs is None:
            return None
        entries = output.logprobs[:num_tokens]
        if output.cumulative_logprob is None:
            self.cumulative_logprob = (self.cumulative_logprob or 0.0) + sum(entry.logprobs[0] for entry in entries)
        if self._request.hides_logprobs:
            return None
        logprobs: list[Mapping[int, Logprob]] = [to_logprobs(entry, self._tokenizer) for entry in entries]
        self.logprobs = (self.logprobs or []) + logprobs
        return logprobs


class RequestState:
    """All choices of one request.

    With ``best_of`` above ``n`` nothing is shown until every sample has ended; then come the n of the highest mean
    logprob, best first.
    """

    def __init__(self, request: EngineRequest, prompt_text: str | None, tokenizer: Tokenizer | None) -> None:
        params = request.sampling
        self._request = request
        self._prompt_text = prompt_text
        self._tokenizer = tokenizer
        self._is_held = params.best_of is not None and params.best_of > params.n
        self._choices = [Choice(index, request, tokenizer) for index in range(request.num_choices)]
        self._prompt_logprobs: list[Mapping[int, Logprob] | None] | None = None
        self._num_cached_tokens: int | None = None
        self._queued_s: float | None = None
        self._pooled: list[float] | None = None

    @property
    def is_finished(self) -> bool:
        return all(choice.is_finished for choice in self._choices)

    @property
    def num_open_choices(self) -> int:
        return sum(not choice.is_finished for choice in self._choices)

    def take(self, output: SequenceOutput) -> list[ChoiceDelta]:
        """Add one sequence's new tokens and return what is new to show; nothing of a choice that has ended."""
        choice = self._choices[output.index]
        if choice.is_finished:
            return []
        delta = choice.take(output)
        is_first = self._num_cached_tokens is None
        if output.num_cached_tokens is not None:
            self._num_cached_tokens = output.num_cached_tokens
        if output.queued_s is not None:
            self._queued_s = output.queued_s
        if output.pooled is not None:
            self._pooled = output.pooled
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = [
                None if entry is None else to_logprobs(entry, self._tokenizer) for entry in output.prompt_logprobs
            ]
        if not self._is_held:
            delta.queued_s = output.queued_s
            if output.index == 0:
                delta.num_cached_tokens = output.num_cached_tokens if is_first else None
                delta.pooled = output.pooled
                delta.prompt_logprobs = None if output.prompt_logprobs is None else self._prompt_logprobs
            return [delta]
        return self._best() if self.is_finished else []

    def ended_by_text(self, index: int) -> bool:
        """Whether a stop string ended a choice, which the engine does not know."""
        return isinstance(self._choices[index].stop_reason, str)

    def snapshot(self) -> RequestOutput:
        """Return everything so far."""
        shown = self._choices if not self._is_held else self._ranked() if self.is_finished else []
        return RequestOutput(
            request_id=self._request.request_id,
            prompt=self._prompt_text,
            prompt_token_ids=list(self._request.prompt_token_ids),
            outputs=[choice.snapshot(index) for index, choice in enumerate(shown)],
            prompt_logprobs=self._prompt_logprobs,
            finished=self.is_finished,
            num_cached_tokens=self._num_cached_tokens,
            pooled=self._pooled,
            error=next((choice.error for choice in self._choices if choice.error is not None), None),
        )

    def _ranked(self) -> list[Choice]:
        ranked = sorted(self._choices, key=lambda choice: choice.mean_logprob, reverse=True)
        return ranked[: self._request.sampling.n]

    def _best(self) -> list[ChoiceDelta]:
        deltas = [choice.whole(index) for index, choice in enumerate(self._ranked())]
        deltas[0].num_cached_tokens = self._num_cached_tokens
        deltas[0].queued_s = self._queued_s
        deltas[0].prompt_logprobs = self._prompt_logprobs
        return deltas


def to_logprobs(entry: TokenLogprobs, tokenizer: Tokenizer | None) -> dict[int, Logprob]:
    """Return one position's candidates by token id, the chosen token first."""
    return {
        token_id: Logprob(logprob, rank, None if tokenizer is None else tokenizer.token_string(token_id))
        for token_id, logprob, rank in zip(entry.token_ids, entry.logprobs, entry.ranks, strict=True)
    }
