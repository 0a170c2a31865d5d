"""``Preemption``: who steps aside when blocks are short, and how."""

from pageport.cache.block_manager import BlockManager
from pageport.scheduling.batch import Batch
from pageport.scheduling.request import Sequence, Status
from pageport.scheduling.roster import Roster

# Whoever was preempted this often ranks first from then on and is disturbed only by those protected before.
MAX_PREEMPTIONS = 3


class Preemption:
    """Chooses the worst-ranked running sequence and takes its blocks: to host blocks where these have room, else away.

    A victim with steps in flight, or in the step being planned, drains first: it is scheduled no more, and preempted
    once they are committed, so a recomputed sequence never misses a token. Whoever needs the room waits that long.
    """

    def __init__(self, roster: Roster, blocks: BlockManager) -> None:
        self._roster = roster
        self._blocks = blocks
        self._num_protected = 0

    @property
    def room_is_coming(self) -> bool:
        """Do blocks return when a step in flight is committed?"""
        return bool(self._roster.draining or self._roster.leaving)

    def settle(self, batch: Batch) -> None:
        """Preempt the draining sequences whose steps in flight are over."""
        waiting = []
        for sequence in self._roster.draining:
            if sequence.status is not Status.RUNNING:
                continue
            if sequence.steps_in_flight:
                waiting.append(sequence)
            else:
                self._preempt(sequence, batch)
        self._roster.draining = waiting

    def victim_for(self, sequence: Sequence) -> Sequence | None:
        """Return the worst-ranked running sequence behind ``sequence``."""
        for candidate in self._roster.running.worst_first():
            if candidate.rank <= sequence.rank:
                return None
            if candidate.request.beam is None and not candidate.is_draining:
                return candidate
        return None

    def evict(self, victim: Sequence, batch: Batch) -> bool:
        """Preempt a running sequence, or let it drain; say whether its blocks are available already."""
        if victim.steps_in_flight:
            victim.is_draining = True
            self._roster.draining.append(victim)
            return False
        self._preempt(victim, batch)
        return True

    def _preempt(self, victim: Sequence, batch: Batch) -> None:
        victim.num_preemptions += 1
        if victim.num_preemptions >= MAX_PREEMPTIONS and victim.protection is None:
            victim.protection = self._num_protected
            self._num_protected += 1
        self._roster.stats.preemptions_total += 1
        # What comes in with this batch is not on the device when it is copied out.
        moves = None if batch.swap_in else self._blocks.swap_out(victim.sequence_id)
        if moves is None:
            self._blocks.free(victim.sequence_id)
            victim.num_computed = 0
            self._roster.suspend(victim, Status.WAITING)
            return
        batch.swap_out += moves
        self._roster.stats.swapped_out_blocks_total += sum(len(move.pairs) for move in moves)
        self._roster.suspend(victim, Status.SWAPPED)
