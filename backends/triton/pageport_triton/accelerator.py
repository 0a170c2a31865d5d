"""``Accelerator``: everything that pageport calls of ``torch.cuda`` or ``torch.xpu``, in one place."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor


class AcceleratorModule(Protocol):
    """What ``torch.cuda`` and ``torch.xpu`` have in common of what is called here."""

    def mem_get_info(self, device: Any, /) -> tuple[int, int]: ...
    def memory_allocated(self, device: Any, /) -> int: ...
    def memory_reserved(self, device: Any, /) -> int: ...
    def empty_cache(self) -> None: ...
    def synchronize(self, device: Any, /) -> None: ...
    def set_device(self, device: Any, /) -> None: ...
    def current_stream(self, device: Any, /) -> Any: ...
    def stream(self, stream: Any, /) -> AbstractContextManager[Any]: ...
    def graph_pool_handle(self) -> Any: ...
    def graph(self, graph: Any, /, *, pool: Any) -> AbstractContextManager[Any]: ...

    Stream: Any
    Event: Any


class AllocatorBytes(NamedTuple):
    """Bytes that torch's allocator of this process holds: in tensors, and in all."""

    allocated: int
    reserved: int


def allocate_pinned(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return host memory that the device can copy to and from while both go on working."""
    return torch.empty(tuple(shape), dtype=dtype, pin_memory=True)


class Accelerator:
    """One device behind such a module: its memory, a stream for copies beside the one that computes, graphs.

    What computes is the module's current stream; nothing here changes it.
    """

    def __init__(
        self,
        module: AcceleratorModule,
        torch_device: torch.device,
        *,
        new_graph: Callable[[], Any] | None = None,
        pinned: Callable[[Sequence[int], torch.dtype], Tensor] = allocate_pinned,
    ) -> None:
        """Select the device and make the stream.

        Args:
            new_graph: the module's class of graphs, where it has one.
        """
        self._module = module
        self._device = torch_device
        self._new_graph = new_graph
        self._graph_pool: Any = None
        self.pinned = pinned
        module.set_device(torch_device)
        self._copies = module.Stream(device=torch_device)

    def free_and_total(self) -> tuple[int, int]:
        """Return bytes of the device, whoever has them."""
        return self._module.mem_get_info(self._device)

    def allocator_bytes(self) -> AllocatorBytes:
        return AllocatorBytes(self._module.memory_allocated(self._device), self._module.memory_reserved(self._device))

    def release_unused(self) -> None:
        """Give memory that no tensor uses back to the driver."""
        self._module.empty_cache()

    def synchronize(self) -> None:
        self._module.synchronize(self._device)

    def record(self) -> Any:
        """Return an event that has come when everything computed so far is done."""
        event = self._module.Event()
        event.record(self._module.current_stream(self._device))
        return event

    def fetch(self, tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
        """Copy to pinned memory beside what is computed later; what is returned waits for the copies alone."""
        self._copies.wait_stream(self._module.current_stream(self._device))
        with self._module.stream(self._copies):
            copies = [self._to_pinned(tensor) for tensor in tensors]
            done = self._module.Event()
            done.record(self._copies)
        sources = list(tensors)  # their memory must not be given to others before the copies are done

        def wait() -> list[Tensor]:
            done.synchronize()
            sources.clear()
            return copies

        return wait

    def capture(self, run: Callable[[], None]) -> Any:
        """Return a graph of what ``run`` starts; graphs share memory, as they are replayed one after the other."""
        if self._new_graph is None:
            raise RuntimeError("this device's torch has no graphs")
        if self._graph_pool is None:
            self._graph_pool = self._module.graph_pool_handle()
        graph = self._new_graph()
        with self._module.graph(graph, pool=self._graph_pool):
            run()
        return graph

    def _to_pinned(self, tensor: Tensor) -> Tensor:
        copy = self.pinned(tensor.shape, tensor.dtype)
        copy.copy_(tensor, non_blocking=True)
        return copy
