"""``ResizableGraph``: steps of one kind, captured once and replayed in any size."""

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from pageport.backend.device import Device
from pageport.backend.graph import Graph, StepSize
from pageport.engine.step_buffers import DecodeStep


class ResizableGraph:
    """Captures the first step it is given, and resizes the graph to every later one.

    Steps of one kind call the same ops on tensors that begin at the same addresses, and differ in numbers of rows only:
    all decodes are one kind, steps of which some tokens are wanted another.
    """

    def __init__(self, device: Device, compute: Callable[[DecodeStep, Tensor | None], Tensor]) -> None:
        """Start without a graph.

        Args:
            compute: runs a step by ops and views alone and returns the logits of its wanted tokens, at one address.
        """
        self._device = device
        self._compute = compute
        self._captured: _CapturedStep | None = None

    def run(self, step: DecodeStep, wanted: Tensor | None = None) -> Tensor:
        """Compute a step that is laid out where all are; return the logits of its wanted tokens.

        Args:
            wanted: which tokens these are, at one address; default: all, which is a kind of its own.
        """
        num_tokens = step.inputs.token_ids.shape[0]
        size = StepSize(
            tokens=num_tokens,
            requests=step.batches[0].num_requests,
            wanted=num_tokens if wanted is None else wanted.shape[0],
        )
        if self._captured is None:
            if size.wanted == 0:  # tensors without rows have no address
                return self._compute(step, wanted)
            self._captured = self._capture(step, wanted, size)
            if not self._captured.graph.has_run:
                self._captured.graph.replay()
        else:
            self._captured.graph.resize(self._captured.size, size)
            self._captured.graph.replay()
        logits = self._captured.logits
        return logits.as_strided((size.wanted, logits.shape[1]), logits.stride())

    def padded_size(self, num_requests: int) -> int:
        """Return how many rows a step of so many requests has: no more."""
        return num_requests

    def _capture(self, step: DecodeStep, wanted: Tensor | None, size: StepSize) -> "_CapturedStep":
        results: dict[str, Tensor] = {}

        def run() -> None:
            results["logits"] = self._compute(step, wanted)

        graph = self._device.capture(run)
        return _CapturedStep(graph, size, results["logits"])


class _CapturedStep(NamedTuple):
    graph: Graph
    size: StepSize
    logits: Tensor
