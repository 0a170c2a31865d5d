"""``open_device``: an AMD GPU behind ``torch.cuda``, which is what torch built for ROCm calls it."""

import torch

from pageport.errors import BackendUnavailable
from pageport_triton.accelerator import Accelerator
from pageport_triton.architectures import amd_class
from pageport_triton.graph_device import GraphDevice


class RocmDevice(GraphDevice):
    """One AMD GPU."""

    def __init__(self, accelerator: Accelerator, torch_device: torch.device, architecture: str) -> None:
        # torch.distributed knows RCCL by the name of the library it stands in for.
        super().__init__(accelerator, torch_device, architecture, collective_backend="nccl")


def open_device(ordinal: int) -> RocmDevice:
    """Open the GPU: this makes the process's HIP context.

    Raises:
        BackendUnavailable: torch is built for something else, or the tables have no entry for this GPU.
    """
    if torch.version.hip is None:
        raise BackendUnavailable(f"torch {torch.__version__} is not built for ROCm (torch.version.hip is None).")
    where = torch.device("cuda", ordinal)
    name = torch.cuda.get_device_properties(where).gcnArchName
    accelerator = Accelerator(torch.cuda, where, new_graph=torch.cuda.CUDAGraph)
    return RocmDevice(accelerator, where, amd_class(name))
