"""``ReplayingDevice``: the plain-torch reference with graphs, each the captured function called again."""

from collections.abc import Callable
from dataclasses import replace

from pageport.backend.capabilities import Capabilities
from pageport.backend.graph import Graph
from pageport.testing.reference_device import ReferenceDevice


class ReplayingDevice(ReferenceDevice):
    """Counts what is captured and replayed; saves no time."""

    def __init__(self, graph_sizes: tuple[int, ...] = ()) -> None:
        self._graph_sizes = graph_sizes
        self.num_captures = 0
        self.num_replays = 0

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, features={"graph": 1}, graph_sizes=self._graph_sizes)

    def capture(self, run: Callable[[], None]) -> Graph:
        run()
        self.num_captures += 1
        return _Repeated(self, run)


class _Repeated(Graph):
    def __init__(self, device: ReplayingDevice, run: Callable[[], None]) -> None:
        self._device = device
        self._run = run

    def replay(self) -> None:
        self._run()
        self._device.num_replays += 1
