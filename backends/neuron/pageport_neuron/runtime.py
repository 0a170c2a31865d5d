"""``NeuronRuntime``: what this backend calls of ``torch_neuronx``."""

from importlib import import_module
from types import ModuleType
from typing import Any

import torch

from pageport.backend.kv import Memory
from pageport.errors import BackendUnavailable

PACKAGE = "torch_neuronx"
DEVICE_TYPE = "neuron"


class NeuronRuntime:
    """The device module that an installed ``torch_neuronx`` gives torch."""

    def __init__(self, module: Any) -> None:
        self._module = module

    @classmethod
    def load(cls) -> "NeuronRuntime":
        """Import the vendor's package, which registers the device and the compiler with torch.

        Raises:
            BackendUnavailable: it is not installed, or is not the package that has them.
        """
        import_package()
        module = getattr(torch, DEVICE_TYPE, None)
        if module is None:
            raise BackendUnavailable(
                f"{PACKAGE} is installed, but has no torch.{DEVICE_TYPE}: it is older than the native PyTorch backend. "
                "Install the one of Neuron SDK 2.33 or later."
            )
        return cls(module)

    def device_count(self) -> int:
        """Return how many logical cores this process may use."""
        return int(self._module.device_count())

    def synchronize(self, device: torch.device) -> None:
        self._module.synchronize(device)

    def memory(self, device: torch.device) -> Memory:
        """Return the core's memory; what other processes took of it the vendor does not tell."""
        total = int(self._module.get_device_properties(device).total_memory)
        reserved = int(self._module.memory_reserved(device.index))
        return Memory(total=total, free=max(0, total - reserved), reserved_by_this_process=reserved)


def import_package() -> ModuleType:
    """Import the vendor's package.

    Raises:
        BackendUnavailable: it is not there, or is a placeholder of its name.
    """
    try:
        return import_module(PACKAGE)
    except Exception as error:  # a placeholder raises what it likes
        raise BackendUnavailable(
            f"{PACKAGE} cannot be imported ({type(error).__name__}: {error}). It comes from AWS's own index: "
            "https://awsdocs-neuron.readthedocs-hosted.com/en/latest/torch/."
        ) from error
