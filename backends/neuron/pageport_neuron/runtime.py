"""``NeuronRuntime``: what this backend calls of ``torch_neuronx``; every vendor name stands here or in ``compiler``."""

import os
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from pageport.backend.kv import Memory
from pageport.errors import BackendUnavailable
from pageport_neuron.options import NeuronOptions

PACKAGE = "torch_neuronx"
DEVICE_TYPE = "neuron"
# Read by the vendor's libraries when they are loaded.
CACHE_VARIABLE = "TORCH_NEURONX_NEFF_CACHE_DIR"
COMPILE_ONLY_VARIABLE = "TORCH_NEURONX_COMPILE_ONLY"
TARGET_VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"


class NeuronRuntime:
    """The device module of an installed ``torch_neuronx``."""

    def __init__(self, module: Any) -> None:
        self._module = module

    @classmethod
    def load(cls, options: NeuronOptions) -> "NeuronRuntime":
        """Import the vendor's package, which registers the device and the compiler with torch.

        Raises:
            BackendUnavailable: it is not installed, or is not the package that has them.
        """
        _set_cache(options.cache_dir)
        _import_package()
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


def load_compiler(options: NeuronOptions) -> None:
    """Import the vendor's package so that it compiles without a device and runs nothing.

    Raises:
        BackendUnavailable: it is not installed.
    """
    _set_cache(options.cache_dir)
    os.environ[COMPILE_ONLY_VARIABLE] = "1"
    os.environ.setdefault(TARGET_VARIABLE, options.target)
    _import_package()


def _import_package() -> ModuleType:
    try:
        return import_module(PACKAGE)
    except Exception as error:  # a placeholder of the package raises what it likes
        raise BackendUnavailable(
            f"{PACKAGE} cannot be imported ({type(error).__name__}: {error}). It comes from AWS's own index: "
            "https://awsdocs-neuron.readthedocs-hosted.com/en/latest/torch/."
        ) from error


def _set_cache(folder: Path | None) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        os.environ[CACHE_VARIABLE] = str(folder)
