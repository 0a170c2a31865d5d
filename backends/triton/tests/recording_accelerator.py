"""A fake of exactly the part of ``torch.cuda`` and ``torch.xpu`` that ``Accelerator`` calls, on host tensors.

It computes nothing itself and records every call. Copies to pinned memory happen as late as they may: when somebody
waits for an event that was recorded after them. Whoever reads sooner finds ``POISON``, and whoever overwrites the
source sooner finds that it is overwritten.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

POISON = 0x5A
TOTAL_BYTES = 1 << 33


class RecordingModule:
    """Stands where the module is; ``calls`` has a tuple for each call: its name, then what it was about."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        # What this process has, where nobody says: pools are in its memory.
        self.reserved: int | None = None
        self.allocated: int | None = None
        self.late_copies: list[Callable[[], None]] = []
        self.num_done = 0
        # What the next graph repeats: a real one records kernels, this one has to be told the function.
        self.captured: Callable[[], None] | None = None
        self._num_events = 0

    def names(self, *wanted: str) -> list[str]:
        """Return the calls of these names in order."""
        return [call[0] for call in self.calls if call[0] in wanted]

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        self.calls.append(("pinned", tuple(shape)))
        memory = torch.empty(tuple(shape), dtype=dtype)
        memory.view(torch.uint8).fill_(POISON) if memory.ndim else memory.fill_(POISON)
        pinned = memory.as_subclass(PinnedTensor)
        pinned.module = self
        return pinned

    def mem_get_info(self, device: torch.device) -> tuple[int, int]:
        return TOTAL_BYTES - self.memory_reserved(device), TOTAL_BYTES

    def memory_allocated(self, device: torch.device) -> int:
        return self.memory_reserved(device) if self.allocated is None else self.allocated

    def memory_reserved(self, device: torch.device) -> int:
        return resident_bytes() if self.reserved is None else self.reserved

    def empty_cache(self) -> None:
        self.calls.append(("empty_cache",))

    def synchronize(self, device: torch.device) -> None:
        self.calls.append(("synchronize device",))
        self.finish(len(self.late_copies))

    def set_device(self, device: torch.device) -> None:
        self.calls.append(("set_device", device))

    def current_stream(self, device: torch.device) -> "RecordedStream":
        return RecordedStream(self, "compute")

    def Stream(self, device: torch.device) -> "RecordedStream":
        return RecordedStream(self, "copies")

    def Event(self) -> "RecordedEvent":
        self._num_events += 1
        return RecordedEvent(self, self._num_events)

    @contextmanager
    def stream(self, stream: "RecordedStream") -> Iterator[None]:
        self.calls.append(("enter stream", stream.name))
        yield
        self.calls.append(("leave stream", stream.name))

    def graph_pool_handle(self) -> str:
        self.calls.append(("new pool",))
        return "pool"

    def CUDAGraph(self) -> "RecordedGraph":
        return RecordedGraph(self)

    @contextmanager
    def graph(self, graph: "RecordedGraph", *, pool: str) -> Iterator[None]:
        assert self.captured is not None
        graph.function = self.captured
        yield
        self.calls.append(("capture", pool))

    def finish(self, count: int) -> None:
        """Do the late copies up to this one."""
        for copy in self.late_copies[self.num_done : count]:
            copy()
        self.num_done = max(self.num_done, count)


def resident_bytes() -> int:
    """Return the bytes of memory that this process has touched."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class RecordedStream:
    def __init__(self, module: RecordingModule, name: str) -> None:
        self._module = module
        self.name = name

    def wait_stream(self, other: "RecordedStream") -> None:
        self._module.calls.append(("wait_stream", self.name, other.name))


class RecordedEvent:
    def __init__(self, module: RecordingModule, number: int) -> None:
        self._module = module
        self._number = number
        self._num_copies = 0

    def record(self, stream: RecordedStream) -> None:
        self._num_copies = len(self._module.late_copies)
        self._module.calls.append(("record", self._number, stream.name))

    def synchronize(self) -> None:
        self._module.calls.append(("synchronize event", self._number))
        self._module.finish(self._num_copies)


class RecordedGraph:
    def __init__(self, module: RecordingModule) -> None:
        self._module = module
        self.function: Callable[[], None] = lambda: None

    def replay(self) -> None:
        self._module.calls.append(("replay",))
        self.function()


class PinnedTensor(Tensor):
    """Host memory whose copies from the device come late; views of it are such memory too."""

    module: RecordingModule

    def __getitem__(self, index: Any) -> Any:
        return self._marked(super().__getitem__(index))

    def view(self, *shape: Any) -> Any:
        return self._marked(super().view(*shape))

    def copy_(self, source: Tensor, non_blocking: bool = False) -> Any:
        if non_blocking:
            self.module.late_copies.append(lambda: self._copy_now(source))
            return self
        self._copy_now(source)
        return self

    def _copy_now(self, source: Tensor) -> None:
        with torch.inference_mode():  # as the step was that made both
            self.as_subclass(Tensor).copy_(source)

    def _marked(self, view: Any) -> Any:
        view.module = self.module
        return view
