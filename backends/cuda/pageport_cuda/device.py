"""``open_device``: an NVIDIA GPU behind ``torch.cuda``."""

import torch

from pageport_triton.accelerator import Accelerator
from pageport_triton.architectures import nvidia_class
from pageport_triton.graph_device import GraphDevice


class CudaDevice(GraphDevice):
    """One NVIDIA GPU."""

    def __init__(self, accelerator: Accelerator, torch_device: torch.device, architecture: str) -> None:
        super().__init__(accelerator, torch_device, architecture, collective_backend="nccl")


def open_device(ordinal: int) -> CudaDevice:
    """Open the GPU: this makes the process's CUDA context."""
    where = torch.device("cuda", ordinal)
    accelerator = Accelerator(torch.cuda, where, new_graph=torch.cuda.CUDAGraph)
    return CudaDevice(accelerator, where, nvidia_class(torch.cuda.get_device_capability(where)))
