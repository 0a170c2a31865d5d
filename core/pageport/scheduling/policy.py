"""``SequenceQueue``: sequences in the order of a scheduling policy."""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from types import MappingProxyType

from pageport.scheduling.request import Sequence

Rank = tuple[float, ...]
_rank_of = attrgetter("rank")


def fcfs_rank(sequence: Sequence) -> Rank:
    """Order by arrival; whoever was preempted too often comes first."""
    if sequence.protection is not None:
        return (0, 0, sequence.protection, sequence.sequence_id)
    return (1, 0, sequence.request.arrival_time, sequence.sequence_id)


def priority_rank(sequence: Sequence) -> Rank:
    """Order by priority, lower first, then by arrival; whoever was preempted too often comes first."""
    if sequence.protection is not None:
        return (0, 0, sequence.protection, sequence.sequence_id)
    return (1, sequence.request.priority, sequence.request.arrival_time, sequence.sequence_id)


POLICIES: Mapping[str, Callable[[Sequence], Rank]] = MappingProxyType({"fcfs": fcfs_rank, "priority": priority_rank})


class SequenceQueue:
    """Sequences sorted by rank. A rank changes only while its sequence is in no queue."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        """Best rank first, as of now: the queue may change during the iteration."""
        return iter(self._sequences.copy())

    def __contains__(self, sequence: Sequence) -> bool:
        place = bisect_left(self._sequences, sequence.rank, key=_rank_of)
        return place < len(self._sequences) and self._sequences[place] is sequence

    def worst_first(self) -> Iterator[Sequence]:
        """Worst rank first, as of now."""
        return reversed(self._sequences.copy())

    def first(self) -> Sequence | None:
        """Return the best-ranked sequence, if there is one."""
        return self._sequences[0] if self._sequences else None

    def add(self, sequence: Sequence) -> None:
        insort(self._sequences, sequence, key=_rank_of)

    def remove(self, sequence: Sequence) -> None:
        """Take out a sequence that is in this queue."""
        place = bisect_left(self._sequences, sequence.rank, key=_rank_of)
        assert self._sequences[place] is sequence, f"sequence {sequence.sequence_id} is not in this queue"
        del self._sequences[place]
