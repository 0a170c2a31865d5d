"""``SchedulerDrive``: scheduler, block manager and ``NullRunner`` in the engine's loop, checked after every move."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from pageport.cache.block_manager import BlockManager
from pageport.cache.layout import GroupLayout
from pageport.config import SchedulerConfig
from pageport.sampling.beam import BeamSearchParams
from pageport.scheduling.batch import Batch, TokenLogprobs
from pageport.scheduling.beam_search import num_candidates
from pageport.scheduling.request import FinishReason, Request
from pageport.scheduling.scheduler import Scheduler
from pageport.scheduling.updates import SequenceUpdate
from pageport.testing.null_runner import NullPending, NullRunner, NullSampling

_MAX_STEPS = 20_000


class ManualClock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class SchedulerDrive:
    """Runs requests on the null model and keeps what was told of them.

    ``tokens[request_id, index]`` are a sequence's tokens so far, ``ends`` why it ended, ``prompt_logprobs`` and
    ``cumulative_logprobs`` what came with it, ``batches`` every step.
    """

    def __init__(
        self,
        groups: Sequence[GroupLayout] = (GroupLayout(num_blocks=64, block_size=4),),
        *,
        depth: int = 0,
        max_model_len: int = 256,
        enable_prefix_caching: bool = True,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        config = SchedulerConfig(**{"max_num_seqs": 8, "max_num_batched_tokens": 16, **(settings or {})})
        self.clock = ManualClock()
        self.blocks = BlockManager(
            groups,
            enable_prefix_caching=enable_prefix_caching,
            max_tokens_per_step=config.step_tokens,
        )
        self.scheduler = Scheduler(
            config, self.blocks, pipeline_depth=depth, clock=self.clock, max_model_len=max_model_len
        )
        self.runner = NullRunner(groups, max_num_seqs=config.max_num_seqs, clock=self.clock)
        self.requests: dict[str, Request] = {}
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.ends: dict[tuple[str, int], FinishReason] = {}
        self.errors: dict[tuple[str, int], str] = {}
        self.prompt_logprobs: dict[str, list[TokenLogprobs | None]] = {}
        self.cumulative_logprobs: dict[tuple[str, int], float] = {}
        self.first_token_step: dict[str, int] = {}
        self.batches: list[Batch] = []
        self._depth = depth
        self._num_stuck_turns = 0
        self._in_flight: deque[tuple[Batch, NullPending]] = deque()

    def add(
        self,
        prompt_token_ids: Sequence[int],
        max_tokens: int = 4,
        *,
        request_id: str | None = None,
        seed: int = 0,
        beam: BeamSearchParams | None = None,
        stop_token_ids: frozenset[int] = frozenset(),
        **fields: Any,
    ) -> Request:
        """Queue a request; ``fields`` are those of ``Request``."""
        candidates = num_candidates(beam.beam_width, len(stop_token_ids)) if beam else 0
        request = Request(
            request_id=request_id if request_id is not None else str(len(self.requests)),
            prompt_token_ids=list(prompt_token_ids),
            max_tokens=max_tokens,
            sampling=NullSampling(seed, candidates),
            beam=beam,
            stop_token_ids=stop_token_ids,
            arrival_time=fields.pop("arrival_time", self.clock()),
            num_sequences=beam.beam_width if beam else fields.pop("num_sequences", 1),
            **fields,
        )
        self.scheduler.add(request)
        self.requests[request.request_id] = request
        return request

    def abort(self, request_id: str, index: int | None = None) -> None:
        self.scheduler.abort(request_id, index)
        self.scheduler.check()

    def step(self) -> Batch | None:
        """Do what the engine does in one turn; return the batch it submitted.

        Two turns in a row that neither submit nor commit while requests wait are a deadlock: AssertionError.
        """
        batch = self.submit()
        may_commit = bool(self._in_flight) and (batch is None or len(self._in_flight) > self._depth)
        if may_commit:
            self.commit()
        self._note(self.scheduler.take_updates())
        is_stuck = batch is None and not may_commit and self.scheduler.has_work
        self._num_stuck_turns = self._num_stuck_turns + 1 if is_stuck else 0
        assert self._num_stuck_turns < 2, "requests wait and nothing runs"
        return batch

    def submit(self) -> Batch | None:
        """Schedule a step, if the pipeline has room for one, and start it."""
        batch = self.scheduler.schedule()
        self.scheduler.check()
        if batch is not None:
            self.batches.append(batch)
            self._in_flight.append((batch, self.runner.submit(batch)))
        return batch

    def commit(self) -> None:
        """Commit the oldest step in flight."""
        batch, pending = self._in_flight.popleft()
        self._note(self.scheduler.commit(batch, pending.result()))
        self.scheduler.check()

    def run(self) -> None:
        """Step until every request is finished."""
        for _ in range(_MAX_STEPS):
            if not self.scheduler.has_work:
                return
            self.step()
        raise AssertionError(f"requests are unfinished after {_MAX_STEPS} steps")

    def output(self, request: Request, index: int = 0) -> list[int]:
        """Return the tokens told of one choice."""
        return self.tokens.get((request.request_id, index), [])

    def require_idle(self) -> None:
        """Prove that nothing is left behind: every block free or cached, every row free."""
        self.scheduler.check()
        assert not self.scheduler.has_work
        assert self.blocks.usage().used == (0,) * len(self.blocks.usage().used)
        stats = self.scheduler.stats()
        assert (stats.num_running, stats.num_waiting) == (0, 0)

    def _note(self, updates: Sequence[SequenceUpdate]) -> None:
        for update in updates:
            request, key = update.sequence.request, (update.sequence.request.request_id, update.sequence.index)
            assert key not in self.ends, f"{key} was told after its end"
            self.tokens.setdefault(key, []).extend(update.new_token_ids)
            if update.new_token_ids:
                self.first_token_step.setdefault(request.request_id, len(self.batches))
            if update.sequence.finish_reason is not None:
                self.ends[key] = update.sequence.finish_reason
            if update.error is not None:
                self.errors[key] = update.error
            if update.prompt_logprobs is not None:
                assert request.request_id not in self.prompt_logprobs, "prompt logprobs were told twice"
                self.prompt_logprobs[request.request_id] = update.prompt_logprobs
            if update.cumulative_logprob is not None:
                self.cumulative_logprobs[key] = update.cumulative_logprob
