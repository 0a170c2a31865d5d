"""``Engine``: the step loop. Schedule, run, commit."""

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from pageport.config import SchedulerConfig
from pageport.engine.grammars import Grammars
from pageport.engine.messages import EngineRequest, EngineStats, SequenceOutput, StepOutputs
from pageport.engine.runner import PendingStep, Runner
from pageport.errors import InvalidParameter, PageportError
from pageport.sampling.grammar import Grammar
from pageport.sampling.row import RowSampling
from pageport.sampling.structured import StructuredOutput
from pageport.scheduling.batch import Batch, StepResult
from pageport.scheduling.beam_search import num_candidates
from pageport.scheduling.request import FinishReason, Request
from pageport.scheduling.scheduler import Scheduler
from pageport.scheduling.updates import SequenceUpdate

# How long a step waits when nothing runs and grammars are being compiled.
IDLE_WAIT_S = 0.05


class _InFlight(NamedTuple):
    batch: Batch
    pending: PendingStep
    started: float


class Engine:
    """Scheduler and runner, one step at a time; knows tokens only."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        config: SchedulerConfig,
        *,
        pipeline_depth: int,
        grammars: Grammars | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._config = config
        self._depth = pipeline_depth
        self._grammars = grammars
        self._clock = clock
        self._in_flight: deque[_InFlight] = deque()

    @property
    def has_work(self) -> bool:
        is_compiled = self._grammars is not None and self._grammars.has_compiled
        return is_compiled or bool(self._in_flight) or self._scheduler.has_work

    @property
    def is_compiling(self) -> bool:
        """Do requests wait for their grammars?"""
        return self._grammars is not None and self._grammars.is_waited_for

    def add(self, request: EngineRequest) -> None:
        """Queue a request; one whose grammar has to be compiled runs once it is, or is refused in a later step.

        Raises:
            InvalidParameter: its grammar cannot be followed.
            RequestTooLong: it can never fit.
            EngineOverloaded: the queue is full.
        """
        now = self._clock()
        structured = request.sampling.structured
        if structured is None:
            self._schedule(request, now)
            return
        grammars = self._require_grammars()
        grammar = grammars.known(structured)
        if grammar is None:
            grammars.wait_for(request, structured, now)
        else:
            self._schedule(request, now, grammar)

    def compile(self, structured: StructuredOutput) -> None:
        """Compile a grammar now, so that requests with it need not wait.

        Raises:
            InvalidParameter: it cannot be followed.
        """
        self._require_grammars().compile(structured)

    def when_compiled(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called, on another thread, when a request need no longer wait for its grammar."""
        if self._grammars is not None:
            self._grammars.on_compiled = wake

    def _require_grammars(self) -> Grammars:
        if self._grammars is None:
            raise InvalidParameter("This engine has no tokenizer to follow a grammar with.", "structured")
        return self._grammars

    def _schedule(self, request: EngineRequest, arrived_at: float, grammar: Grammar | None = None) -> None:
        timeout_s = request.timeout_s if request.timeout_s is not None else self._config.request_timeout
        self._scheduler.add(
            Request(
                request_id=request.request_id,
                prompt_token_ids=request.prompt_token_ids,
                max_tokens=request.max_tokens,
                sampling=_row_sampling(request, grammar),
                num_sequences=request.beam.beam_width if request.beam else request.num_choices,
                stop_token_ids=request.stop_token_ids,
                priority=request.priority,
                arrival_time=arrived_at,
                deadline=None if timeout_s is None else arrived_at + timeout_s,
                needs_host_token=grammar is not None or bool(request.sampling.logits_processors),
                wants_prompt_logprobs=request.sampling.prompt_logprobs is not None,
                wants_pooled=request.sampling.pooling is not None,
                cache_keys=request.cache_keys,
                beam=request.beam,
            )
        )

    def abort(self, request_id: str, index: int | None = None, reason: FinishReason = FinishReason.ABORT) -> None:
        """Stop a request, or one of its choices, now or once its step in flight is over; unknown ids are ignored.

        ``reason`` is what is counted: STOP when the client found a stop string.
        """
        if self._grammars is not None and index is None:
            self._grammars.forget(request_id)
        self._scheduler.abort(request_id, index, reason)

    def step(self) -> StepOutputs:
        """Submit the next step, and commit the oldest one when enough are in flight."""
        refused = self._schedule_compiled()
        batch = self._scheduler.schedule()
        if batch is not None:
            self._submit(batch)
        outputs: list[SequenceOutput] = []
        if self._in_flight and (batch is None or len(self._in_flight) > self._depth):
            outputs = self._commit(self._in_flight.popleft())
        outputs += [_output(update) for update in self._scheduler.take_updates()]
        if self._grammars is not None and not (outputs or refused or self.has_work):
            self._grammars.wait(IDLE_WAIT_S)  # somebody who steps without work waits for this
        return StepOutputs(outputs=outputs, stats=self.stats(), refused=refused)

    def stats(self) -> EngineStats:
        """Counters and gauges of this moment."""
        return self._scheduler.stats()

    def block_states(self) -> tuple[bytes, ...]:
        """Return a ``BlockState`` for each of the device's blocks, by cache group."""
        return self._scheduler.block_states()

    def check(self) -> None:
        """Assert every accounting identity; for tests."""
        self._scheduler.check()

    def close(self) -> None:
        """Drop what is in flight and give the device's memory back; no step can follow."""
        self._in_flight.clear()
        self._runner.close()
        if self._grammars is not None:
            self._grammars.close()

    def _schedule_compiled(self) -> dict[str, PageportError]:
        """Queue the requests whose grammars are there by now; return why others are refused."""
        refused: dict[str, PageportError] = {}
        for request, arrived_at, grammar in self._grammars.take() if self._grammars is not None else ():
            try:
                if isinstance(grammar, InvalidParameter):
                    raise grammar
                self._schedule(request, arrived_at, grammar)
            except PageportError as error:
                refused[request.request_id] = error
        return refused

    def _submit(self, batch: Batch) -> None:
        started = self._clock()
        try:
            pending = self._runner.submit(batch)
        except Exception as error:
            pending = _Failed(error)
        self._in_flight.append(_InFlight(batch, pending, started))

    def _commit(self, step: _InFlight) -> list[SequenceOutput]:
        try:
            result = step.pending.result()
        except Exception as error:
            result = StepResult(token_ids=[], failure=f"{type(error).__name__}: {error}")
        self._scheduler.note_step_time(step.batch, self._clock() - step.started)
        return [_output(update) for update in self._scheduler.commit(step.batch, result)]


class _Failed(PendingStep):
    """A step the runner could not run."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def result(self) -> StepResult:
        raise self._error


def _row_sampling(request: EngineRequest, grammar: Grammar | None) -> RowSampling:
    return RowSampling(
        params=request.sampling,
        seed=request.seed,
        stop_token_ids=request.stop_token_ids,
        bad_words_token_ids=request.bad_words_token_ids,
        num_candidates=(
            num_candidates(request.beam.beam_width, len(request.stop_token_ids)) if request.beam is not None else 0
        ),
        grammar=grammar,
    )


def _output(update: SequenceUpdate) -> SequenceOutput:
    sequence = update.sequence
    request = sequence.request
    queued_s, request.queued_s = request.queued_s, None
    return SequenceOutput(
        request_id=request.request_id,
        index=sequence.index,
        token_ids=update.new_token_ids,
        finish_reason=sequence.finish_reason.value if sequence.finish_reason else None,
        stop_token_id=sequence.stop_token_id,
        logprobs=update.logprobs,
        prompt_logprobs=update.prompt_logprobs,
        pooled=update.pooled,
        num_cached_tokens=request.num_cached_tokens if sequence.index == 0 else None,
        queued_s=queued_s,
        cumulative_logprob=update.cumulative_logprob,
        error=update.error,
    )
