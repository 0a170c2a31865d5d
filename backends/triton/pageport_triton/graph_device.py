"""``GraphDevice``: a GPU whose torch captures graphs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakSet

import torch

from pageport.backend import Capabilities
from pageport.backend.graph import Graph
from pageport.errors import BackendError
from pageport_triton.accelerator import Accelerator
from pageport_triton.accelerator_device import AcceleratorDevice

# Captured steps cost memory and a start each: from 8 rows on a step is filled up to the next multiple of 8, then 32.
GRAPH_SIZES = (1, 2, 4, *range(8, 256, 8), *range(256, 513, 32))


class AcceleratorGraph(Graph):
    """A graph that torch captured."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self.is_stale = False

    def replay(self) -> None:
        if self.is_stale:
            raise BackendError("A graph was captured before the device slept. Capture it again: its memory is gone.")
        self._graph.replay()


class GraphDevice(AcceleratorDevice):
    """One GPU, which replays decode steps."""

    def __init__(
        self, accelerator: Accelerator, torch_device: torch.device, architecture: str, collective_backend: str
    ) -> None:
        super().__init__(accelerator, torch_device, architecture, collective_backend)
        self._graphs: WeakSet[AcceleratorGraph] = WeakSet()
        plain = super().capabilities
        self._with_graphs = replace(plain, graph_sizes=GRAPH_SIZES, features={**plain.features, "graph": 1})

    @property
    def capabilities(self) -> Capabilities:
        return self._with_graphs

    def capture(self, run: Callable[[], None]) -> Graph:
        # Once by ops: what is compiled or loaded at first use must not be while a graph is captured.
        run()
        graph = AcceleratorGraph(self._accelerator.capture(run))
        self._graphs.add(graph)
        return graph

    def sleep(self) -> None:
        for graph in self._graphs:
            graph.is_stale = True
        super().sleep()
