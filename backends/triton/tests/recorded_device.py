"""Devices of backends over the recording fake, with core's reference for every op."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pageport.backend import Capabilities
from pageport.backend.device import Device
from pageport.backend.graph import Graph
from pageport_cuda.device import CudaDevice
from pageport_triton.accelerator import Accelerator
from pageport_triton.architectures import INTERPRETER
from pageport_triton.triton_device import TritonDevice
from pageport_xpu.device import XpuDevice

from .recording_accelerator import RecordingModule

HOST = torch.device("cpu")


class ReferenceOps(TritonDevice):
    """The kernels exchanged for the reference: quick, and what memory, streams and graphs do is the same."""

    @property
    def capabilities(self) -> Capabilities:
        declared = super().capabilities
        return replace(declared, features={}, weight_schemes=(), quantisations=(), preferred_dtype="float32")

    def memories(self, pool: Any) -> Sequence[Tensor]:
        return [pool.key, pool.value]


for _name in vars(TritonDevice):
    if not _name.startswith("_") and _name not in ("capabilities", "torch_device"):
        setattr(ReferenceOps, _name, getattr(Device, _name))


class Recorded(Device):
    """What memory, streams, graphs and swapping do can be read in ``module.calls``."""

    def __init__(self) -> None:
        self.module = RecordingModule()
        accelerator = Accelerator(self.module, HOST, new_graph=self.module.CUDAGraph, pinned=self.module.pinned)
        super().__init__(accelerator, HOST, INTERPRETER)


class InterpretedDevice(Recorded, CudaDevice):
    """The CUDA backend's device with its kernels, in Triton's interpreter."""

    def capture(self, run: Callable[[], None]) -> Graph:
        self.module.captured = run
        return super().capture(run)


class RecordedDevice(InterpretedDevice, ReferenceOps):
    """The CUDA backend's device without its kernels."""

    memories = ReferenceOps.memories


class RecordedGraphlessDevice(Recorded, XpuDevice, ReferenceOps):
    """The XPU backend's device without its kernels, where torch has no graphs for it."""

    memories = ReferenceOps.memories
