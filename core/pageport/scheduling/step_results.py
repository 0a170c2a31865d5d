"""``StepResults``: what came back from a step becomes tokens, ends and freed blocks."""

import operator
from collections.abc import Sequence as ListOf

from pageport.cache.block_manager import BlockManager
from pageport.scheduling.batch import Batch, StepResult, TokenLogprobs
from pageport.scheduling.beam_search import Beam, BeamGroup, Continuation
from pageport.scheduling.request import FinishReason, Request, Sequence, Status
from pageport.scheduling.roster import Roster
from pageport.scheduling.updates import SequenceUpdate


class StepResults:
    """Applies a ``StepResult`` to the sequences of its batch.

    A token of a sequence that ended while the step was in flight is dropped.
    """

    def __init__(self, roster: Roster, blocks: BlockManager) -> None:
        self._roster = roster
        self._blocks = blocks

    def apply(self, batch: Batch, result: StepResult) -> list[SequenceUpdate]:
        """Append tokens, end what is finished, and tell what is new."""
        self._leave_flight(batch)
        if result.failure is not None:
            return self._fail(batch, result.failure)
        self._commit_chunks(batch)
        self._collect_prompt_scores(batch, result)
        self._collect_pooled(batch, result)
        updates: list[SequenceUpdate] = []
        beams: dict[str, list[TokenLogprobs]] = {}
        logprobs, errors = result.logprobs, result.errors
        for k, sequence in enumerate(batch.sample_sequences):
            sequence.num_pending -= 1
            if sequence.status is Status.FINISHED:
                continue
            if k in errors:
                updates += self._end_with_error(sequence, errors[k])
                continue
            listed = None if logprobs is None else logprobs[k]
            request = sequence.request
            if request.beam is not None:
                assert listed is not None, "a beam's candidates are missing"
                beams.setdefault(request.request_id, []).append(listed[0])
                continue
            updates.append(self._append(sequence, result.token_ids[k], listed))
        for request_id, candidates in beams.items():
            # An error of one beam has ended the others.
            if request_id in self._roster.beam_groups:
                updates += self._advance(self._roster.beam_groups[request_id], candidates)
        return updates

    def _leave_flight(self, batch: Batch) -> None:
        entries = batch.sequences
        for sequence in entries:
            sequence.steps_in_flight -= 1
        for source, sequence in zip(batch.sample_sources, batch.sample_sequences, strict=True):
            if entries[source] is not sequence:  # forked in this step
                sequence.steps_in_flight -= 1
        for sequence in [s for s in self._roster.leaving if not s.steps_in_flight]:
            self._roster.release(sequence)

    def _commit_chunks(self, batch: Batch) -> None:
        """Offer the full blocks of prompt chunks to the prefix index; decodes follow with their tokens."""
        for entry in range(batch.num_decodes, len(batch.rows)):
            sequence = batch.sequences[entry]
            if sequence.status is Status.RUNNING:
                stop = batch.starts[entry] + batch.counts[entry]
                self._blocks.commit(sequence.sequence_id, sequence.token_ids, stop)

    def _collect_prompt_scores(self, batch: Batch, result: StepResult) -> None:
        for entry, listed in result.prompt_logprobs.items():
            scores = batch.sequences[entry].request.prompt_scores
            start = batch.starts[entry]
            # A recomputed chunk repeats what is known.
            if scores is not None and start <= len(scores):
                scores += listed[len(scores) - start :]

    def _collect_pooled(self, batch: Batch, result: StepResult) -> None:
        for entry, chunk in result.pooled.items():
            request = batch.sequences[entry].request
            # A prompt that is computed again is summed up again.
            before = None if batch.starts[entry] == 0 else request.pooled
            request.pooled = chunk if before is None else list(map(operator.add, before, chunk))

    def _append(
        self, sequence: Sequence, sampled: ListOf[int], logprobs: ListOf[TokenLogprobs] | None
    ) -> SequenceUpdate:
        request, token_ids = sequence.request, sequence.token_ids
        new: list[int] = []
        reason = None
        for token_id in sampled:
            token_ids.append(token_id)
            new.append(token_id)
            if token_id in request.stop_token_ids:
                reason, sequence.stop_token_id = FinishReason.STOP, token_id
                break
            if len(token_ids) >= sequence.token_limit:
                reason = FinishReason.LENGTH
                break
        self._roster.stats.generation_tokens_total += len(new)
        # The newest token is not computed yet.
        self._blocks.commit(sequence.sequence_id, token_ids, len(token_ids) - 1)
        if reason is not None:
            self._roster.finish(sequence, reason)
        update = SequenceUpdate(sequence, new)
        if logprobs is not None:
            update.logprobs = list(logprobs[: len(new)])
        if request.prompt_scores is not None:
            update.prompt_logprobs = _take_prompt_scores(request)
        update.pooled, request.pooled = request.pooled, None
        return update

    # Errors

    def _end_with_error(self, sequence: Sequence, reason: str) -> list[SequenceUpdate]:
        if sequence.request.beam is not None:
            told = self._roster.finish_request(sequence.request, FinishReason.ERROR)
            return [SequenceUpdate(s, [], error=reason) for s in told]
        self._roster.finish(sequence, FinishReason.ERROR)
        return [SequenceUpdate(sequence, [], error=reason)]

    def _fail(self, batch: Batch, reason: str) -> list[SequenceUpdate]:
        """End every request that the void step ran, or whose row or blocks it was to prepare."""
        for sequence in batch.sample_sequences:
            sequence.num_pending -= 1
        touched = {*batch.rows, *(new.row for new in batch.new_rows), *(update.row for update in batch.block_updates)}
        affected = dict.fromkeys([*batch.sequences, *batch.sample_sequences])
        affected.update(dict.fromkeys(s for s in self._roster.running if s.row in touched))
        self._roster.requeue_swapped()
        updates: list[SequenceUpdate] = []
        for request in dict.fromkeys(sequence.request for sequence in affected):
            told = self._roster.finish_request(request, FinishReason.ERROR)
            updates += [SequenceUpdate(sequence, [], error=reason) for sequence in told]
        return updates

    # Beams

    def _advance(self, group: BeamGroup, candidates: list[TokenLogprobs]) -> list[SequenceUpdate]:
        continuations = group.advance(candidates)
        if not continuations:
            return self._end_search(group)
        if not group.has_forked:
            self._fork_rows(group)
        self._continue(group, continuations)
        return []

    def _fork_rows(self, group: BeamGroup) -> None:
        """Move the carrier out of the running sequences and give every spare one of the rows claimed for it."""
        self._roster.running.remove(group.beams[0].sequence)
        for spare in group.spares:
            spare.row = self._roster.rows.take_claimed(group.request.request_id)
            assert spare.row is not None
        self._roster.rows.drop_claim(group.request.request_id)
        group.has_forked = True

    def _continue(self, group: BeamGroup, continuations: list[Continuation]) -> None:
        """Survivors go on in place, beams without successor are dropped, further successors are forked."""
        survivors = dict.fromkeys(c.parent for c in continuations)
        for beam in group.beams:
            if beam.sequence not in survivors:
                self._blocks.free(beam.sequence.sequence_id)
                beam.sequence.status = Status.WAITING
                group.spares.append(beam.sequence)
        histories = {parent: parent.token_ids for parent in survivors}
        in_place = set(survivors)
        beams = []
        for parent, token_id, logprob in continuations:
            sequence = parent
            if parent in in_place:
                in_place.remove(parent)
            else:
                sequence = group.spares.pop()
                self._blocks.fork(parent.sequence_id, sequence.sequence_id)
                sequence.status = Status.RUNNING
                sequence.num_computed = parent.num_computed
            sequence.token_ids = [*histories[parent], token_id]
            beams.append(Beam(sequence, logprob))
        group.beams = beams

    def _end_search(self, group: BeamGroup) -> list[SequenceUpdate]:
        request, best = group.request, group.best()
        self._roster.stats.generation_tokens_total += sum(len(hypothesis.token_ids) for hypothesis in best)
        self._roster.finish_search(
            request, [FinishReason.LENGTH if h.stop_token_id is None else FinishReason.STOP for h in best]
        )
        updates = []
        for sequence, hypothesis in zip(request.sequences, best, strict=False):
            sequence.token_ids = [*request.prompt_token_ids, *hypothesis.token_ids]
            sequence.stop_token_id = hypothesis.stop_token_id
            updates.append(SequenceUpdate(sequence, hypothesis.token_ids, cumulative_logprob=hypothesis.logprob))
        if request.prompt_scores is not None and updates:
            updates[0].prompt_logprobs = _take_prompt_scores(request)
        return updates


def _take_prompt_scores(request: Request) -> list[TokenLogprobs | None]:
    scores, request.prompt_scores = request.prompt_scores, None
    return [None, *(scores or ())]
