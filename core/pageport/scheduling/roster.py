"""``Roster``: every unfinished sequence, each in exactly one place, with its row and its blocks."""

from collections.abc import Callable

from pageport.cache.block_manager import BlockManager
from pageport.scheduling.beam_search import BeamGroup, num_returned
from pageport.scheduling.policy import Rank, SequenceQueue
from pageport.scheduling.request import FinishReason, Request, Sequence, Status
from pageport.scheduling.row_pool import RowPool
from pageport.scheduling.stats import SchedulerStats


class Roster:
    """The places a sequence can be in, and the moves between them.

    ``waiting`` (no blocks, no row), ``swapped`` (host blocks, no row), ``running`` (blocks and a row; beams after
    their fork are in ``beam_groups`` instead), ``unforked`` (siblings that wait for their carrier, the sequence that
    computes the prompt for all), ``leaving`` (finished, but a step in flight still writes to their blocks).
    """

    def __init__(self, blocks: BlockManager, rank: Callable[[Sequence], Rank], num_rows: int) -> None:
        self.blocks = blocks
        self.rows = RowPool(num_rows)
        self.stats = SchedulerStats()
        self.requests: dict[str, Request] = {}
        self.waiting = SequenceQueue()
        self.swapped = SequenceQueue()
        self.running = SequenceQueue()
        self.unforked: dict[str, list[Sequence]] = {}
        self.beam_groups: dict[str, BeamGroup] = {}
        self.leaving: set[Sequence] = set()
        self.draining: list[Sequence] = []  # running ones that are preempted once their steps in flight are over
        self.unannounced: list[Sequence] = []  # took a row the runner has not heard of
        self._rank = rank

    # Coming

    def add(self, request: Request) -> None:
        """Queue a request: its first sequence carries the prompt for all."""
        self.requests[request.request_id] = request
        if len(request.sequences) > 1:
            self.unforked[request.request_id] = request.sequences[1:]
        for sequence in request.sequences:
            sequence.rank = self._rank(sequence)
        self.waiting.add(request.sequences[0])

    def rows_needed(self, sequence: Sequence) -> int:
        """Return how many rows must be available before a sequence starts: its own and those of its siblings."""
        siblings = self.unforked.get(sequence.request.request_id, ())
        return 1 + min(len(siblings), self.rows.num_rows - 1)

    def start(self, sequence: Sequence) -> None:
        """Run a waiting or swapped sequence whose device blocks are there: give it a row and claim its siblings'."""
        (self.swapped if sequence.status is Status.SWAPPED else self.waiting).remove(sequence)
        num_rows = self.rows_needed(sequence)
        self._run(sequence, self.rows.take())
        self.rows.claim(sequence.request.request_id, num_rows - 1)

    def start_beams(self, carrier: Sequence, max_blocks: tuple[int, ...]) -> None:
        """Run the carrier of a beam search, whose other sequences are spares until it has computed the prompt."""
        self.start(carrier)
        request = carrier.request
        spares = self.unforked.pop(request.request_id, [])
        self.beam_groups[request.request_id] = BeamGroup(request, carrier, spares, max_blocks)

    def fork_siblings(self, carrier: Sequence) -> list[Sequence]:
        """Fork the siblings of a carrier whose last prompt chunk was reserved; return those that run.

        A sibling for which no row is left waits and computes the prompt itself, from the prefix index where it can.
        """
        request_id = carrier.request.request_id
        forked = []
        for sibling in self.unforked.pop(request_id, ()):
            if self._fork(carrier, sibling):
                forked.append(sibling)
            else:
                self.waiting.add(sibling)
        self.rows.drop_claim(request_id)
        return forked

    def _fork(self, parent: Sequence, child: Sequence) -> bool:
        row = self.rows.take_claimed(parent.request.request_id)
        if row is None:
            return False
        self.blocks.fork(parent.sequence_id, child.sequence_id)
        child.num_computed = parent.num_computed
        self._run(child, row)
        return True

    def _run(self, sequence: Sequence, row: int) -> None:
        sequence.row = row
        sequence.status = Status.RUNNING
        self.running.add(sequence)
        self.unannounced.append(sequence)

    # Stepping aside

    def suspend(self, sequence: Sequence, status: Status) -> None:
        """Make a running sequence, none of whose steps is in flight, WAITING or SWAPPED; its rank may change."""
        assert sequence.steps_in_flight == 0, "a victim has steps in flight"
        self.running.remove(sequence)
        self._give_row(sequence)
        self.rows.drop_claim(sequence.request.request_id)
        sequence.is_draining = False
        sequence.status = status
        sequence.rank = self._rank(sequence)
        (self.swapped if status is Status.SWAPPED else self.waiting).add(sequence)

    def requeue_swapped(self) -> None:
        """Let every swapped sequence be recomputed instead: the host blocks are not to be trusted any more."""
        for sequence in self.swapped:
            self.swapped.remove(sequence)
            self.blocks.free(sequence.sequence_id)
            sequence.num_computed = 0
            sequence.status = Status.WAITING
            self.waiting.add(sequence)

    # Going

    def finish_request(self, request: Request, reason: FinishReason) -> list[Sequence]:
        """End every unfinished sequence of a request; return those its client hears of."""
        told = [s for s in self._end_all(request, reason) if s.index < num_returned(request)]
        for _ in told:
            self._count(reason)
        return told

    def finish_search(self, request: Request, reasons: list[FinishReason]) -> None:
        """End a beam search whose best hypotheses, which the first sequences stand for, ended with ``reasons``."""
        self._end_all(request, FinishReason.LENGTH)
        for sequence, reason in zip(request.sequences, reasons, strict=False):
            sequence.finish_reason = reason
            self._count(reason)

    def _end_all(self, request: Request, reason: FinishReason) -> list[Sequence]:
        # Siblings end before their carrier: nobody is left to take over from it.
        ending = [s for s in reversed(request.sequences) if s.status is not Status.FINISHED]
        if request.beam is not None:
            self._dissolve(request, reason)
        for sequence in ending:
            if sequence.status is not Status.FINISHED:
                self._end(sequence, reason)
        self._forget(request)
        return ending[::-1]

    def finish(self, sequence: Sequence, reason: FinishReason) -> None:
        """End one sequence; its blocks and its row are returned once no step in flight uses them."""
        self._end(sequence, reason)
        self._count(reason)
        if sequence.request.is_finished:
            self._forget(sequence.request)

    def release(self, sequence: Sequence) -> None:
        """Return blocks and row of a finished sequence whose last step in flight is over."""
        self.leaving.remove(sequence)
        self._return(sequence)

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        status, sequence.status = sequence.status, Status.FINISHED
        sequence.finish_reason = reason
        if status is Status.RUNNING:
            self._hand_over(sequence)
            self.running.remove(sequence)
            if sequence.steps_in_flight:
                self.leaving.add(sequence)
            else:
                self._return(sequence)
        elif status is Status.SWAPPED:
            self._hand_over(sequence)
            self.swapped.remove(sequence)
            self.blocks.free(sequence.sequence_id)
        elif sequence in self.waiting:
            self._hand_over(sequence)
            self.waiting.remove(sequence)
        else:
            self.unforked[sequence.request.request_id].remove(sequence)

    def _hand_over(self, carrier: Sequence) -> None:
        """Let a sibling go on with the prompt that ``carrier`` does not finish."""
        request_id = carrier.request.request_id
        siblings = self.unforked.get(request_id)
        if not siblings:
            self.unforked.pop(request_id, None)
            return
        heir = siblings.pop(0)
        if carrier.row is None or not self._fork(carrier, heir):
            self.waiting.add(heir)

    def _dissolve(self, request: Request, reason: FinishReason) -> None:
        """Take a beam group apart, so that its beams can end one by one."""
        group = self.beam_groups.pop(request.request_id, None)
        if group is None:
            return
        for spare in group.spares:
            self._give_row(spare)
            spare.status, spare.finish_reason = Status.FINISHED, reason
        if group.has_forked:
            for beam in group.beams:
                self.running.add(beam.sequence)

    def _return(self, sequence: Sequence) -> None:
        self.blocks.free(sequence.sequence_id)
        self._give_row(sequence)

    def _give_row(self, sequence: Sequence) -> None:
        if sequence.row is not None:
            self.rows.give(sequence.row)
            sequence.row = None

    def _forget(self, request: Request) -> None:
        self.requests.pop(request.request_id, None)
        self.unforked.pop(request.request_id, None)
        self.rows.drop_claim(request.request_id)

    def _count(self, reason: FinishReason) -> None:
        self.stats.finished_total[reason.value] = self.stats.finished_total.get(reason.value, 0) + 1

    def check(self) -> None:
        """Prove that rows, blocks and places agree."""
        self.blocks.check()
        spares = [s for group in self.beam_groups.values() for s in group.spares]
        beams = [b.sequence for g in self.beam_groups.values() if g.has_forked for b in g.beams]
        placed = [
            *((s, Status.WAITING) for s in self.waiting),
            *((s, Status.WAITING) for siblings in self.unforked.values() for s in siblings),
            *((s, Status.WAITING) for s in spares),
            *((s, Status.SWAPPED) for s in self.swapped),
            *((s, Status.RUNNING) for s in self.running),
            *((s, Status.RUNNING) for s in beams),
        ]
        unfinished = [s for r in self.requests.values() for s in r.sequences if s.status is not Status.FINISHED]
        assert sorted(s.sequence_id for s, _ in placed) == sorted(s.sequence_id for s in unfinished)
        assert all(s.status is status for s, status in placed), "a sequence is not where its status says"
        assert all(s.status is Status.FINISHED and s.steps_in_flight for s in self.leaving)
        assert all(s.num_computed < s.num_tokens <= s.token_limit for s in [*self.running, *beams])
        assert all(s.row is None and not s.steps_in_flight for s in [*self.waiting, *self.swapped])
        assert not any(s.num_computed for s in self.waiting), "a waiting sequence counts tokens it has no blocks for"
        holders = [*self.running, *beams, *self.leaving, *(s for s in spares if s.row is not None)]
        self.rows.check([s.row for s in holders if s.row is not None])
        computing = {*self.unforked, *(r for r, group in self.beam_groups.items() if not group.has_forked)}
        assert computing.issuperset(self.rows.claimants()), "rows are claimed for siblings that do not come"
