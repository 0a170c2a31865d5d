"""``StepPlanner``: what one step runs."""

from collections.abc import Callable

from pageport.cache.block_manager import BlockManager
from pageport.cache.hash_chain import HashChain
from pageport.config import SchedulerConfig
from pageport.scheduling.admission import Admission
from pageport.scheduling.batch import Batch, BlockMove, BlockUpdate, NewRow
from pageport.scheduling.preemption import Preemption
from pageport.scheduling.request import Request, Sequence, Status
from pageport.scheduling.roster import Roster
from pageport.scheduling.step_budget import MIN_PREFILL_TOKENS, StepTimeModel, first_share, share_out

# A start that failed for lack of blocks is tried again when more are free, or after this many steps.
_RETRY_STEPS = 8
# Nothing more starts when less than 1 / this of a step's prompt tokens is left: many prompts in progress at once
# only hold blocks and delay each other.
_STARTS_BELOW = 8
# Waiting prompts that one step may find to await a prefix before it looks no further: bounds the time that takes.
_MAX_AWAITING = 64


class StepPlanner:
    """Fills a ``Batch``: decodes first, then prompt chunks from one token budget, then what may start.

    Order within a step: swap in and make room for those who rank first, before anything is reserved; beams; decodes,
    preempting from the worst rank up when blocks are short; prompts. Nothing starts in a step that was short of blocks.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        roster: Roster,
        blocks: BlockManager,
        admission: Admission,
        step_time: StepTimeModel,
        clock: Callable[[], float],
    ) -> None:
        self._config = config
        self._roster = roster
        self._blocks = blocks
        self._admission = admission
        self._step_time = step_time
        self._clock = clock
        self._preemption = Preemption(roster, blocks)
        self._batch = Batch(step=0)
        self._unsent: Batch | None = None  # holds moves but runs nothing: its moves go out with the next batch
        self._is_short = False  # somebody who runs lacks blocks: what becomes free is theirs, nothing starts
        # The last start that failed: sequence, step, free blocks then.
        self._refused: tuple[int, int, tuple[int, ...]] | None = None

    def plan(self, step: int) -> Batch | None:
        """Return the next step, or None when nothing can run before a step in flight is committed."""
        self._batch = self._unsent or Batch(step=step)
        self._batch.step = step
        self._unsent = None
        self._is_short = bool(self._roster.draining)
        self._make_room_ahead()
        self._swap_in()
        self._plan_beams()
        prompts = self._plan_decodes()
        self._batch.num_decodes = len(self._batch.rows)
        self._plan_prompts(prompts)
        self._announce_rows()
        if not self._batch.rows:
            self._unsent = self._batch
            return None
        return self._batch

    # Before anything is reserved

    def _make_room_ahead(self) -> None:
        self._preemption.settle(self._batch)
        if self._config.scheduling_policy == "priority":
            self._make_room_for_priority()

    def _make_room_for_priority(self) -> None:
        """Preempt less urgent running sequences while the most urgent waiting one lacks a row or blocks."""
        urgent = self._roster.waiting.first()
        if urgent is None or urgent.protection is not None:
            return
        victims = [
            s
            for s in self._roster.running.worst_first()
            if s.protection is None and s.request.beam is None and s.request.priority > urgent.request.priority
        ]
        if not victims or not self._admission.fits_without(urgent, victims):
            return
        for victim in victims:
            if self._preemption.room_is_coming or self._admission.fits_without(urgent, ()):
                return
            self._preemption.evict(victim, self._batch)

    def _swap_in(self) -> None:
        """Bring swapped sequences back, best rank first, unless someone more urgent waits."""
        if self._is_short:
            return
        for sequence in self._roster.swapped:
            waiting = self._roster.waiting.first()
            if waiting is not None and self._is_more_urgent(waiting, sequence):
                return
            if self._roster.rows.num_available < self._roster.rows_needed(sequence):
                return
            if not self._admission.fits(sequence, self._prefilling()):
                return
            moves = self._blocks.swap_in(sequence.sequence_id)
            if moves is None:
                return
            self._batch.swap_in += moves
            self._roster.start(sequence)

    def _is_more_urgent(self, waiting: Sequence, swapped: Sequence) -> bool:
        return self._config.scheduling_policy == "priority" and waiting.rank < swapped.rank

    def _prefilling(self) -> list[Sequence]:
        return [s for s in self._roster.running if s.num_tokens - s.num_computed > 1]

    # Decodes

    def _plan_beams(self) -> None:
        for group in self._roster.beam_groups.values():
            if not group.has_forked or group.is_in_flight:
                continue
            for beam in group.beams:
                sequence = beam.sequence
                moves = self._blocks.reserve(sequence.sequence_id, sequence.num_tokens)
                assert moves is not None, "blocks kept back for beams are missing"
                self._copy(moves)
                # The search may have chosen another token than the row sampled: the runner gets the row anew.
                self._roster.unannounced.append(sequence)
                self._run(sequence, 1)
                self._sample(sequence)

    def _plan_decodes(self) -> list[Sequence]:
        """Schedule every running sequence that needs one token; return those that compute their prompt."""
        batch, prompts = self._batch, []
        rows, starts, counts, sequences = batch.rows, batch.starts, batch.counts, batch.sequences
        samples, sources, sampled = batch.sample_rows, batch.sample_sources, batch.sample_sequences
        reserve, take_updates = self._blocks.reserve, self._blocks.take_updates
        beams = bool(self._roster.beam_groups)
        for sequence in self._roster.running:
            if sequence.status is not Status.RUNNING or sequence.is_draining:
                continue
            request = sequence.request
            start = sequence.num_computed
            num_tokens = len(sequence.token_ids) + sequence.num_pending
            if num_tokens - start > 1 or start < len(request.prompt_token_ids):
                prompts.append(sequence)
                continue
            if num_tokens >= sequence.token_limit or (sequence.num_pending and request.needs_host_token):
                continue
            moves = None if beams else reserve(sequence.sequence_id, num_tokens)
            if moves is None:
                moves = self._reserve(sequence, num_tokens)
                if moves is None:
                    continue
            if moves:
                self._copy(moves)
            row = sequence.row
            assert row is not None
            sources.append(len(rows))
            rows.append(row)
            starts.append(start)
            counts.append(1)
            sequences.append(sequence)
            samples.append(row)
            sampled.append(sequence)
            sequence.num_computed = num_tokens
            sequence.num_pending += 1
            sequence.steps_in_flight += 1
            for group, first, block_ids in take_updates(sequence.sequence_id):
                batch.block_updates.append(BlockUpdate(row, group, first, block_ids))
        return prompts

    # Prompts

    def _plan_prompts(self, prompts: list[Sequence]) -> None:
        budget = self._prompt_budget()
        if not self._is_short:
            prompts = prompts + self._start_waiting(prompts, budget)
        shares = share_out([s.num_tokens - s.num_computed for s in prompts], budget)
        for sequence, share in zip(prompts, shares, strict=True):
            if not share or sequence.status is not Status.RUNNING:
                continue
            count = self._reserve_chunk(sequence, share)
            if count:
                self._run(sequence, count)
                if sequence.num_computed == sequence.num_tokens:
                    self._complete_prompt(sequence)

    def _prompt_budget(self) -> int:
        num_decodes = self._batch.num_decodes
        left = self._config.step_tokens - num_decodes
        limit_ms = self._config.max_step_time_ms
        if limit_ms is None or not num_decodes:
            return left
        within = self._step_time.tokens_within(limit_ms)
        return left if within is None else min(left, max(MIN_PREFILL_TOKENS, within - num_decodes))

    def _start_waiting(self, prompts: list[Sequence], budget: int) -> list[Sequence]:
        """Start waiting sequences in order; the first that does not fit keeps its claim, nobody overtakes it."""
        rest = budget
        for sequence in prompts:
            rest -= first_share(sequence.num_tokens - sequence.num_computed, rest)
        started: list[Sequence] = []
        num_awaiting = 0
        for sequence in self._roster.waiting:
            swapped = self._roster.swapped.first()
            if swapped is not None and not self._is_more_urgent(sequence, swapped):
                break
            if rest < max(1, budget // _STARTS_BELOW):
                break
            if self._awaits_prefix(sequence):
                num_awaiting += 1
                if num_awaiting == _MAX_AWAITING:
                    break
                continue
            if self._roster.rows.num_available < self._roster.rows_needed(sequence):
                break
            if not self._start(sequence, prompts + started):
                break
            started.append(sequence)
            rest -= first_share(sequence.num_tokens - sequence.num_computed, rest)
        return started

    def _awaits_prefix(self, sequence: Sequence) -> bool:
        """Say whether somebody who runs computes what ``sequence`` would compute first: others may start before it."""
        request = sequence.request
        if request.needs_whole_prompt:
            return False
        if sequence.prefix_chain is None:
            sequence.prefix_chain = HashChain(request.cache_keys)
        return self._blocks.awaits_prefix(sequence.prefix_chain, sequence.token_ids)

    def _start(self, sequence: Sequence, prefilling: list[Sequence]) -> bool:
        """Open a waiting sequence and run it if it fits."""
        if self._was_refused(sequence):
            return False
        request = sequence.request
        needed = None
        if request.beam is not None:
            needed = self._admission.beam_blocks(request, sequence.token_limit)
            if not self._admission.beams_fit(needed, prefilling):
                return False
        cached = self._blocks.open(
            sequence.sequence_id,
            sequence.token_ids,
            request.cache_keys,
            read_prefix=not request.needs_whole_prompt,
            chain=sequence.prefix_chain,
        )
        if needed is None and not self._admission.fits(sequence, prefilling):
            self._blocks.free(sequence.sequence_id)
            self._refused = (sequence.sequence_id, self._batch.step, self._blocks.free_blocks())
            return False
        sequence.num_computed = cached
        sequence.prefix_chain = None  # it grows with the sequence from now on
        if needed is None:
            self._roster.start(sequence)
        else:
            self._roster.start_beams(sequence, needed)
        if request.num_cached_tokens is None:
            request.num_cached_tokens = cached
            request.queued_s = self._clock() - request.arrival_time
            self._count_prompt(request, cached)
        return True

    def _was_refused(self, sequence: Sequence) -> bool:
        """Say whether trying to start ``sequence``, which hashes its whole prompt, is known to be in vain."""
        if self._refused is None or not len(self._roster.running):
            return False
        sequence_id, step, free_then = self._refused
        if sequence_id != sequence.sequence_id or self._batch.step - step >= _RETRY_STEPS:
            return False
        return all(now <= then for now, then in zip(self._blocks.free_blocks(), free_then, strict=True))

    def _count_prompt(self, request: Request, cached: int) -> None:
        stats, num_prompt = self._roster.stats, len(request.prompt_token_ids)
        stats.prompt_tokens_total += num_prompt
        if not request.needs_whole_prompt:
            stats.prefix_query_tokens_total += num_prompt
            stats.prefix_hit_tokens_total += cached

    def _reserve_chunk(self, sequence: Sequence, count: int) -> int:
        """Reserve up to ``count`` tokens of a prompt, fewer when blocks are short; return how many, 0 for none."""
        while count > 1:
            moves = self._try_reserve(sequence, sequence.num_computed + count)
            if moves is not None:
                self._copy(moves)
                return count
            count //= 2
        moves = self._reserve(sequence, sequence.num_computed + 1)
        if moves is None:
            return 0
        self._copy(moves)
        return 1

    def _complete_prompt(self, sequence: Sequence) -> None:
        """Sample from a prompt's last token, for the sequence and for the siblings that it is forked to."""
        self._sample(sequence)
        if sequence.request.beam is not None:
            return
        for sibling in self._roster.fork_siblings(sequence):
            sibling.steps_in_flight += 1
            self._sample(sibling)
            self._tell_blocks(sibling)

    # Parts of an entry

    def _reserve(self, sequence: Sequence, num_tokens: int) -> list[BlockMove] | None:
        """Reserve, preempting from the worst rank up; None when ``sequence`` has to wait for blocks."""
        while True:
            moves = self._try_reserve(sequence, num_tokens)
            if moves is not None:
                return moves
            self._is_short = True
            if self._preemption.room_is_coming:
                return None
            victim = self._preemption.victim_for(sequence)
            if victim is None or not self._preemption.evict(victim, self._batch):
                return None

    def _try_reserve(self, sequence: Sequence, num_tokens: int) -> list[BlockMove] | None:
        if sequence.request.beam is None and not self._admission.can_grow(num_tokens - sequence.num_computed):
            return None
        return self._blocks.reserve(sequence.sequence_id, num_tokens)

    def _run(self, sequence: Sequence, count: int) -> None:
        """Add an entry for the next ``count`` tokens of a sequence, which are reserved."""
        batch, request, start = self._batch, sequence.request, sequence.num_computed
        assert sequence.row is not None
        scores = request.prompt_scores
        if scores is not None and len(scores) < min(start + count, sequence.num_prompt_tokens - 1):
            batch.prompt_logprob_entries.append(len(batch.rows))
        if request.wants_pooled and start < sequence.num_prompt_tokens:
            batch.pooled_entries.append(len(batch.rows))
        batch.rows.append(sequence.row)
        batch.starts.append(start)
        batch.counts.append(count)
        batch.sequences.append(sequence)
        sequence.num_computed = start + count
        sequence.steps_in_flight += 1
        self._tell_blocks(sequence)

    def _sample(self, sequence: Sequence) -> None:
        """Sample for a sequence from the last token of the last entry."""
        assert sequence.row is not None
        self._batch.sample_rows.append(sequence.row)
        self._batch.sample_sources.append(len(self._batch.rows) - 1)
        self._batch.sample_sequences.append(sequence)
        sequence.num_pending += 1

    def _copy(self, moves: list[BlockMove]) -> None:
        self._batch.copies += moves
        self._roster.stats.copied_blocks_total += sum(len(move.pairs) for move in moves)

    def _tell_blocks(self, sequence: Sequence) -> None:
        assert sequence.row is not None
        for group, start, block_ids in self._blocks.take_updates(sequence.sequence_id):
            self._batch.block_updates.append(BlockUpdate(sequence.row, group, start, block_ids))

    def _announce_rows(self) -> None:
        for sequence in dict.fromkeys(self._roster.unannounced):
            if sequence.status is Status.RUNNING and sequence.row is not None:
                request = sequence.request
                self._batch.new_rows.append(
                    NewRow(
                        sequence.row,
                        sequence.token_ids,
                        len(request.prompt_token_ids),
                        sequence.index,
                        request.sampling,
                    )
                )
        self._roster.unannounced.clear()
