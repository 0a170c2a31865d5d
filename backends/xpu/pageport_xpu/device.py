"""``open_device``: an Intel GPU behind ``torch.xpu``, its attention by Triton kernels or by a library."""

import torch

from pageport_triton.accelerator import Accelerator
from pageport_triton.accelerator_device import AcceleratorDevice
from pageport_triton.architectures import INTEL
from pageport_triton.attention_option import TRITON, import_library
from pageport_triton.graph_device import GraphDevice
from pageport_xpu.xpu_kernels_device import XPU_KERNELS, XpuKernelsDevice

COLLECTIVE_BACKEND = "xccl"


class XpuDevice(AcceleratorDevice):
    """One Intel GPU, whose steps run op by op."""

    def __init__(self, accelerator: Accelerator, torch_device: torch.device, architecture: str) -> None:
        super().__init__(accelerator, torch_device, architecture, COLLECTIVE_BACKEND)


class XpuGraphDevice(GraphDevice):
    """One Intel GPU, behind a torch that captures graphs for it."""

    def __init__(self, accelerator: Accelerator, torch_device: torch.device, architecture: str) -> None:
        super().__init__(accelerator, torch_device, architecture, COLLECTIVE_BACKEND)


def open_device(ordinal: int, attention: str = TRITON) -> XpuDevice | XpuGraphDevice | XpuKernelsDevice:
    """Open the GPU.

    Args:
        attention: whose kernels attend, one of the option's values.

    Raises:
        BackendUnavailable: their library is not installed.
    """
    where = torch.device("xpu", ordinal)
    new_graph = getattr(torch.xpu, "XPUGraph", None)
    accelerator = Accelerator(torch.xpu, where, new_graph=new_graph)
    if attention == XPU_KERNELS.name:
        return XpuKernelsDevice(accelerator, where, INTEL, import_library(XPU_KERNELS))
    return XpuDevice(accelerator, where, INTEL) if new_graph is None else XpuGraphDevice(accelerator, where, INTEL)
