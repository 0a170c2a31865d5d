"""Entry point: imports neither torch nor triton."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pageport.backend import Backend, Probe, Rank, hookimpl
from pageport_triton.requirements import ENVIRONMENT, XPU, check_device, with_packages
from pageport_xpu.level_zero import find_devices

if TYPE_CHECKING:
    from pageport.backend.device import Device


class XpuBackend(Backend):
    """Intel GPUs, one as one device."""

    name = "xpu"
    interface = (0, 1)
    priority = 20
    environment = ENVIRONMENT

    @classmethod
    def probe(cls) -> Probe:
        return with_packages(find_devices(), XPU)

    def open(self, ordinal: int, options: Mapping[str, str], rank: Rank = Rank()) -> "Device":  # noqa: B008 - frozen
        """Open a GPU; this backend has no options."""
        check_device(type(self), "Intel GPU", ordinal, options)
        # Here, because plugins are imported before anyone asks for a device.
        from pageport_xpu.device import open_device

        return open_device(ordinal)


@hookimpl
def pageport_backends() -> list[type[Backend]]:
    return [XpuBackend]
