"""``TapeGraph``: a captured step, kernels and arguments on a tape that were recorded while they ran."""

import ctypes
from collections import defaultdict

from pageport.backend.graph import Graph, StepSize
from pageport_cpu.library import Arguments, Integer, Tape


class TapeGraph(Graph):
    """Replays in one native call; resized, by writing other numbers of rows into the arguments."""

    has_run = True

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._size: StepSize | None = None  # until it is resized for the first time, that of the capture
        self._counts: dict[str, list[ctypes.c_int64]] = {}  # by field of StepSize

    def replay(self) -> None:
        self._tape.replay()

    def resize(self, captured: StepSize, size: StepSize) -> None:
        if self._size is None:
            self._size, self._counts = captured, _find_counts(self._tape.arguments, captured)
        for name, before, now in zip(StepSize._fields, self._size, size, strict=True):
            if before != now:
                for count in self._counts.get(name, ()):
                    count.value = now
        self._size = size


def _find_counts(calls: list[Arguments], captured: StepSize) -> dict[str, list[ctypes.c_int64]]:
    """Return the fields that hold the sizes of the captured step."""
    counts: dict[str, list[ctypes.c_int64]] = defaultdict(list)
    for arguments in calls:
        for field in arguments.request_counts:
            counts["requests"].append(_field(arguments, field))
        for field in arguments.token_counts:
            count = _field(arguments, field)
            assert count.value in (captured.tokens, captured.wanted), (
                f"{arguments.kernel} was recorded with {count.value} rows in a step of {captured}"
            )
            counts["tokens" if count.value == captured.tokens else "wanted"].append(count)
    return counts


def _field(arguments: Arguments, name: str) -> ctypes.c_int64:
    return Integer.from_buffer(arguments, getattr(type(arguments), name).offset)
