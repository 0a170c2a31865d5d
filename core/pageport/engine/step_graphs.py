"""``StepGraphs``: decode steps that the device captured, by their number of rows."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from pageport.backend.device import Device
from pageport.backend.graph import Graph
from pageport.engine.step_buffers import DecodeStep

# Each holds some memory of the device; a busy engine's batches have fewer sizes than this.
MAX_GRAPHS = 64


class StepGraphs:
    """Runs decode steps: the first of a size op by op, the second captured, this and every later one replayed.

    A size that comes once costs no capture, and code that a device compiles at first use is compiled before it
    captures. The least recently used graph makes room for a new one.
    """

    def __init__(
        self,
        device: Device,
        step_of: Callable[[int], DecodeStep],
        compute: Callable[[DecodeStep], Tensor],
        *,
        sizes: Sequence[int] = (),
        max_rows: int | None = None,
        max_graphs: int = MAX_GRAPHS,
    ) -> None:
        """Start without graphs.

        Args:
            step_of: from a number of rows to the step that is captured for it.
            compute: runs a step by ops and views alone and returns its logits, at the same address for a size.
            sizes: numbers of rows to capture, ascending; what is larger than all, or not there, has its own.
            max_rows: no step has more.
        """
        self._device = device
        self._step_of = step_of
        self._compute = compute
        self._sizes = tuple(sizes)
        self._max_rows = max_rows
        self._max_graphs = max_graphs
        self._known_sizes: set[int] = set()
        self._captured: dict[int, _CapturedStep] = {}  # least recently used first

    def run(self, step: DecodeStep) -> Tensor:
        """Compute a step that is laid out where ``step_of`` says, its plans made; return the logits of each row.

        It has as many rows as ``padded_size`` says.
        """
        size = step.inputs.token_ids.shape[0]
        if size not in self._known_sizes:
            logits = self._compute(step)
            self._known_sizes.add(size)
            return logits
        captured = self._captured.pop(size, None)
        if captured is None:
            captured = self._capture(step, size)
            if not captured.graph.has_run:
                captured.graph.replay()
        else:
            _copy_plans(step, captured.step)
            captured.graph.replay()
        self._captured[size] = captured
        return captured.logits

    def padded_size(self, num_requests: int) -> int:
        """Return how many rows a step of so many requests should have."""
        place = bisect_left(self._sizes, num_requests)
        size = self._sizes[place] if place < len(self._sizes) else num_requests
        return size if self._max_rows is None else min(size, self._max_rows)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes that have a graph, least recently used first."""
        return tuple(self._captured)

    def _capture(self, step: DecodeStep, size: int) -> "_CapturedStep":
        while len(self._captured) >= self._max_graphs:
            del self._captured[next(iter(self._captured))]
        target = self._step_of(size)
        _copy_plans(step, target)
        results: dict[str, Tensor] = {}

        def run() -> None:
            results["logits"] = self._compute(target)

        graph = self._device.capture(run)
        return _CapturedStep(graph, target, results["logits"])


def _copy_plans(source: DecodeStep, target: DecodeStep) -> None:
    for exact, captured in zip(source.batches, target.batches, strict=True):
        captured.plan = exact.plan


class _CapturedStep(NamedTuple):
    graph: Graph
    step: DecodeStep
    logits: Tensor
