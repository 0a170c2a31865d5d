"""The fake has what torch's modules have of what is called, and takes the same arguments."""

import inspect
from typing import Any

import pytest
import torch

from pageport_triton.accelerator import Accelerator

from .recording_accelerator import RecordedEvent, RecordedGraph, RecordedStream, RecordingModule

WHERE = torch.device("cpu")
# How ``Accelerator`` calls the functions of a module.
CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "mem_get_info": ((WHERE,), {}),
    "memory_allocated": ((WHERE,), {}),
    "memory_reserved": ((WHERE,), {}),
    "empty_cache": ((), {}),
    "synchronize": ((WHERE,), {}),
    "set_device": ((WHERE,), {}),
    "current_stream": ((WHERE,), {}),
    "stream": ((None,), {}),
    "graph_pool_handle": ((), {}),
    "graph": ((object(),), {"pool": None}),
    "Stream": ((), {"device": WHERE}),
    "Event": ((), {}),
}
# The methods it calls of what these return.
METHODS = {"Stream": ("wait_stream",), "Event": ("record", "synchronize"), "Graph": ("replay",)}
MODULES = [torch.cuda, torch.xpu, RecordingModule()]


@pytest.mark.parametrize("module", MODULES, ids=["cuda", "xpu", "fake"])
@pytest.mark.parametrize("name", CALLS)
def test_module_takes_the_arguments_it_is_called_with(module, name):
    positional, named = CALLS[name]
    inspect.signature(getattr(module, name)).bind(*positional, **named)


def test_no_other_function_of_a_module_is_called():
    source = inspect.getsource(Accelerator)
    called = {word.split("(")[0] for word in source.split("self._module.")[1:]} | {
        word.split("(")[0] for word in source.split(" module.")[1:]
    }
    assert {name for name in called if name.isidentifier()} <= set(CALLS)


@pytest.mark.parametrize(
    "classes",
    [
        (torch.cuda.Stream, torch.cuda.Event, torch.cuda.CUDAGraph),
        (torch.xpu.Stream, torch.xpu.Event, torch.xpu.XPUGraph),
        (RecordedStream, RecordedEvent, RecordedGraph),
    ],
    ids=["cuda", "xpu", "fake"],
)
def test_streams_events_and_graphs_have_the_methods(classes):
    for kind, methods in zip(classes, METHODS.values(), strict=True):
        assert all(callable(getattr(kind, method)) for method in methods)
