"""The vendor's package as its documentation and published sources describe it: what this backend calls, and no more.

``torch.neuron``: https://awsdocs-neuron.readthedocs-hosted.com/en/latest/torch/guides/memory-profiling-guide.html;
the backend of ``torch.compile``: …/en/latest/torch/compile/reference-torch-compile.html; both read in November 2026.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch._dynamo.backends import registry

TOTAL, RESERVED, CORES = 24 << 30, 1 << 30, 2


class DeviceModule:
    """``torch.neuron``."""

    def __init__(self) -> None:
        self.synchronized: list[Any] = []

    def device_count(self) -> int:
        return CORES

    def synchronize(self, device: Any = None) -> None:
        self.synchronized.append(device)

    def get_device_properties(self, device: Any = None) -> SimpleNamespace:
        return SimpleNamespace(name="NC_v3", total_memory=TOTAL)

    def memory_reserved(self, device: int | None = None) -> int:
        return RESERVED


class Backend:
    """What ``torch.compile(backend="neuron")`` calls; it counts graphs and runs them as they are."""

    def __init__(self) -> None:
        self.num_graphs = 0

    def __call__(
        self, graph: torch.fx.GraphModule, inputs: Sequence[Any], *, options: Any = None, mode: str = "default"
    ) -> Callable[..., Any]:
        assert mode == "default" and not options, "only the default mode is supported, and few options"
        self.num_graphs += 1
        return graph.forward


@contextmanager
def installed() -> Iterator[SimpleNamespace]:
    """Install the package for as long as a test runs; yields its device module and its backend."""
    module, backend = DeviceModule(), Backend()
    with pytest.MonkeyPatch.context() as patch:
        # Only this name: modules that a test is the first to import must not go with it, since torch's cannot be
        # imported twice.
        patch.setitem(sys.modules, "torch_neuronx", ModuleType("torch_neuronx"))
        patch.setattr(torch, "neuron", module, raising=False)
        patch.setitem(registry._COMPILER_FNS, "neuron", backend)
        patch.setitem(registry._BACKENDS, "neuron", None)
        yield SimpleNamespace(device_module=module, backend=backend)
