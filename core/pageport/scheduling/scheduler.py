"""``Scheduler``: which sequences run in the next step. Plain ints, no tensors."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count

from pageport.cache.block_manager import BlockManager
from pageport.config import SchedulerConfig
from pageport.errors import EngineOverloaded, InvalidParameter
from pageport.scheduling.admission import Admission
from pageport.scheduling.batch import Batch, StepResult
from pageport.scheduling.policy import POLICIES
from pageport.scheduling.request import FinishReason, Request, Sequence, Status
from pageport.scheduling.roster import Roster
from pageport.scheduling.stats import SchedulerStats
from pageport.scheduling.step_budget import StepTimeModel
from pageport.scheduling.step_planner import StepPlanner
from pageport.scheduling.step_results import StepResults
from pageport.scheduling.updates import SequenceUpdate


class Scheduler:
    """Requests come in with ``add``; ``schedule`` and ``commit`` alternate, ``pipeline_depth`` steps overlapping.

    Every sequence's end is told once: by ``commit``, or by ``take_updates`` when no step brought it (a deadline).
    What ``abort`` ends is not told: its caller knows.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        blocks: BlockManager,
        *,
        pipeline_depth: int = 0,
        clock: Callable[[], float] = time.monotonic,
        max_model_len: int,
    ) -> None:
        self._config = config
        self._blocks = blocks
        self._depth = pipeline_depth
        self._clock = clock
        self._max_model_len = max_model_len
        # Every row can decode in every step.
        num_rows = min(config.max_num_seqs, config.step_tokens)
        self._roster = Roster(blocks, POLICIES[config.scheduling_policy], num_rows)
        self._admission = Admission(self._roster, blocks)
        self._step_time = StepTimeModel()
        self._planner = StepPlanner(config, self._roster, blocks, self._admission, self._step_time, clock)
        self._results = StepResults(self._roster, blocks)
        self._in_flight: deque[Batch] = deque()
        self._sequence_ids = count()
        self._deadlines: list[tuple[float, int, Request]] = []
        self._updates: list[SequenceUpdate] = []
        self._last_commit = float("-inf")

    @property
    def has_work(self) -> bool:
        """Is a request unfinished, a step in flight, or an update untold?"""
        return bool(self._roster.requests or self._in_flight or self._updates)

    def add(self, request: Request) -> None:
        """Queue a request; its sequences are made here.

        Raises:
            RequestTooLong: it could not even run alone; with the arithmetic.
            InvalidParameter: an empty prompt, an id in use, or more beams than rows.
            EngineOverloaded: the queue is full.
        """
        if request.request_id in self._roster.requests:
            raise InvalidParameter(f"request_id {request.request_id!r} is in use. Send another.", "request_id")
        num_prompt = len(request.prompt_token_ids)
        token_limit = min(num_prompt + request.max_tokens, self._max_model_len)
        self._admission.require_possible(request, token_limit)
        limit = self._config.max_queued_requests
        if len(self._roster.waiting) >= limit:
            raise EngineOverloaded(f"{limit} requests are waiting, the most this engine queues. Try again later.")
        request.needs_host_token = request.needs_host_token or request.beam is not None
        request.prompt_scores = [] if request.wants_prompt_logprobs else None
        request.sequences = [
            Sequence(
                sequence_id=next(self._sequence_ids),
                request=request,
                index=index,
                token_ids=list(request.prompt_token_ids),
                token_limit=token_limit,
            )
            for index in range(request.num_sequences)
        ]
        self._roster.add(request)
        if request.deadline is not None:
            heappush(self._deadlines, (request.deadline, request.sequences[0].sequence_id, request))

    def abort(self, request_id: str, index: int | None = None, reason: FinishReason = FinishReason.ABORT) -> None:
        """End a request, or one of its choices, at any moment; unknown and finished ones are ignored.

        Blocks and row return at once, or when the last step in flight is committed. Beams are no choices before they
        are told: ``index`` is ignored for them. ``reason`` is what is counted (a stop string the client found: STOP).
        """
        request = self._roster.requests.get(request_id)
        if request is None:
            return
        if index is None:
            self._roster.finish_request(request, reason)
        elif request.beam is None and 0 <= index < len(request.sequences):
            sequence = request.sequences[index]
            if sequence.status is not Status.FINISHED:
                self._roster.finish(sequence, reason)

    def schedule(self) -> Batch | None:
        """Return the next step; None when nothing can run, or not before the oldest step in flight is committed."""
        self._expire()
        if len(self._in_flight) > self._depth or not self._roster.requests:
            return None
        batch = self._planner.plan(self._roster.stats.steps_total)
        if batch is None:
            return None
        self._roster.stats.steps_total += 1
        self._roster.stats.computed_tokens_total += batch.num_tokens
        self._in_flight.append(batch)
        return batch

    def commit(self, batch: Batch, result: StepResult) -> list[SequenceUpdate]:
        """Apply what the oldest step in flight produced."""
        assert self._in_flight and self._in_flight[0] is batch, "steps are committed in the order they were scheduled"
        self._in_flight.popleft()
        updates = self._results.apply(batch, result)
        self._blocks.record_waste()
        return updates

    def take_updates(self) -> list[SequenceUpdate]:
        """Return the ends that no step brought, since the last call: deadlines that passed."""
        updates, self._updates = self._updates, []
        return updates

    def note_step_time(self, batch: Batch, seconds: float) -> None:
        """Learn how long a step took, from its start to its result; called when the result is there.

        A step that waited for the one before it counts from that one's end.
        """
        now = self._clock()
        self._step_time.observe(batch.num_tokens, min(seconds, now - self._last_commit))
        self._last_commit = now

    def stats(self) -> SchedulerStats:
        """Counters since the start and gauges of this moment."""
        roster, usage = self._roster, self._blocks.usage()
        num_beams = sum(len(group.beams) for group in roster.beam_groups.values() if group.has_forked)
        return replace(
            roster.stats,
            num_running=len(roster.running) + num_beams,
            num_waiting=len(roster.waiting) + len(roster.swapped),
            kv_blocks_total=sum(usage.total),
            kv_blocks_used=sum(usage.used),
            kv_waste_ratio=self._blocks.average_waste(),
            finished_total=dict(roster.stats.finished_total),
        )

    def block_states(self) -> tuple[bytes, ...]:
        """Return what ``BlockManager.block_states`` does."""
        return self._blocks.block_states()

    def check(self) -> None:
        """Prove that blocks, rows and places of sequences agree; for tests."""
        self._roster.check()
        in_flight = [s for batch in self._in_flight for s in {*batch.sequences, *batch.sample_sequences}]
        for sequence in in_flight:
            assert sequence.steps_in_flight == in_flight.count(sequence), "steps in flight are miscounted"
            assert sequence.row is not None, "a row was given away under a step in flight"
            assert self._blocks.block_table(sequence.sequence_id, 0), "blocks were given away under a step in flight"

    def _expire(self) -> None:
        if not self._deadlines or self._deadlines[0][0] > self._clock():
            return
        now = self._clock()
        while self._deadlines and self._deadlines[0][0] <= now:
            request = heappop(self._deadlines)[2]
            if not request.is_finished:
                ended = self._roster.finish_request(request, FinishReason.TIMEOUT)
                self._updates += [SequenceUpdate(sequence, []) for sequence in ended]
