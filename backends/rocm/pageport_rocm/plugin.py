"""Entry point: imports neither torch nor triton."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pageport.backend import Backend, Probe, Rank, hookimpl
from pageport_rocm.topology import find_devices
from pageport_triton.requirements import ENVIRONMENT, ROCM, check_device, with_packages

if TYPE_CHECKING:
    from pageport.backend.device import Device


class RocmBackend(Backend):
    """AMD GPUs, one as one device."""

    name = "rocm"
    interface = (1, 0)
    priority = 30
    environment = ENVIRONMENT

    @classmethod
    def probe(cls) -> Probe:
        return with_packages(find_devices(), ROCM)

    def open(self, ordinal: int, options: Mapping[str, str], rank: Rank = Rank()) -> "Device":  # noqa: B008 - frozen
        """Open a GPU; this backend has no options."""
        check_device(type(self), "AMD GPU", ordinal, options)
        # Here, because plugins are imported before anyone asks for a device.
        from pageport_rocm.device import open_device

        return open_device(ordinal)


@hookimpl
def pageport_backends() -> list[type[Backend]]:
    return [RocmBackend]
