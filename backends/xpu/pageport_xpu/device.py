"""``open_device``: an Intel GPU behind ``torch.xpu``."""

import torch

from pageport_triton.accelerator import Accelerator
from pageport_triton.accelerator_device import AcceleratorDevice
from pageport_triton.architectures import INTEL
from pageport_triton.graph_device import GraphDevice

COLLECTIVE_BACKEND = "xccl"


class XpuDevice(AcceleratorDevice):
    """One Intel GPU, whose steps run op by op."""

    def __init__(self, accelerator: Accelerator, torch_device: torch.device, architecture: str) -> None:
        super().__init__(accelerator, torch_device, architecture, COLLECTIVE_BACKEND)


class XpuGraphDevice(GraphDevice):
    """One Intel GPU, behind a torch that captures graphs for it."""

    def __init__(self, accelerator: Accelerator, torch_device: torch.device, architecture: str) -> None:
        super().__init__(accelerator, torch_device, architecture, COLLECTIVE_BACKEND)


def open_device(ordinal: int) -> XpuDevice | XpuGraphDevice:
    """Open the GPU."""
    where = torch.device("xpu", ordinal)
    new_graph = getattr(torch.xpu, "XPUGraph", None)
    accelerator = Accelerator(torch.xpu, where, new_graph=new_graph)
    return XpuDevice(accelerator, where, INTEL) if new_graph is None else XpuGraphDevice(accelerator, where, INTEL)
