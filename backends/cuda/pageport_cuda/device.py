"""``open_device``: an NVIDIA GPU behind ``torch.cuda``, its attention by Triton kernels or by a library."""

import torch

from pageport_cuda.flash_attention_device import FLASH_ATTENTION, FlashAttentionDevice
from pageport_cuda.flashinfer_device import FLASHINFER, FlashInferDevice
from pageport_triton.accelerator import Accelerator
from pageport_triton.architectures import nvidia_class
from pageport_triton.attention_option import TRITON, import_library
from pageport_triton.graph_device import GraphDevice


class CudaDevice(GraphDevice):
    """One NVIDIA GPU."""

    def __init__(self, accelerator: Accelerator, torch_device: torch.device, architecture: str) -> None:
        super().__init__(accelerator, torch_device, architecture, collective_backend="nccl")


def open_device(ordinal: int, attention: str = TRITON) -> CudaDevice | FlashInferDevice | FlashAttentionDevice:
    """Open the GPU: this makes the process's CUDA context.

    Args:
        attention: whose kernels attend, one of the option's values.

    Raises:
        BackendUnavailable: their library is not installed, or the kernels need a newer GPU.
    """
    where = torch.device("cuda", ordinal)
    accelerator = Accelerator(torch.cuda, where, new_graph=torch.cuda.CUDAGraph)
    architecture = nvidia_class(torch.cuda.get_device_capability(where))
    if attention == FLASHINFER.name:
        return FlashInferDevice(accelerator, where, architecture, import_library(FLASHINFER))
    if attention == FLASH_ATTENTION.name:
        return FlashAttentionDevice(accelerator, where, architecture, import_library(FLASH_ATTENTION))
    return CudaDevice(accelerator, where, architecture)
