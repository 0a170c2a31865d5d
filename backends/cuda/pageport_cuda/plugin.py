"""Entry point: imports neither torch nor triton."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pageport.backend import Backend, Probe, Rank, hookimpl
from pageport_cuda.driver import find_devices
from pageport_triton.attention_option import OPTION, read_attention
from pageport_triton.requirements import CUDA, ENVIRONMENT, check_device, with_packages

if TYPE_CHECKING:
    from pageport.backend.device import Device


class CudaBackend(Backend):
    """NVIDIA GPUs, one as one device."""

    name = "cuda"
    interface = (1, 0)
    priority = 30
    environment = ENVIRONMENT

    @classmethod
    def probe(cls) -> Probe:
        return with_packages(find_devices(), CUDA)

    def open(self, ordinal: int, options: Mapping[str, str], rank: Rank = Rank()) -> "Device":  # noqa: B008 - frozen
        """Open a GPU.

        Option ``attention``: ``triton``, ``flashinfer``, ``flash-attn``, or ``auto``, which is ``triton`` until one of
        the others was measured to be faster.
        """
        attention = read_attention(options, self.name, ("flashinfer", "flash-attn"))
        check_device(type(self), "NVIDIA GPU", ordinal, options, (OPTION,))
        # Here, because plugins are imported before anyone asks for a device.
        from pageport_cuda.device import open_device

        return open_device(ordinal, attention)


@hookimpl
def pageport_backends() -> list[type[Backend]]:
    return [CudaBackend]
