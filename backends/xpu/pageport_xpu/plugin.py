"""Entry point: imports neither torch nor triton."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pageport.backend import Backend, Probe, Rank, hookimpl
from pageport.errors import BackendUnavailable
from pageport_triton.attention_option import OPTION, read_attention
from pageport_triton.installed_torch import InstalledTorch, find_torch
from pageport_triton.requirements import ENVIRONMENT, XPU, check_device, with_packages
from pageport_xpu.level_zero import find_devices

if TYPE_CHECKING:
    from pageport.backend.device import Device


class XpuBackend(Backend):
    """Intel GPUs, one as one device."""

    name = "xpu"
    interface = (1, 0)
    priority = 20
    environment = ENVIRONMENT

    @classmethod
    def probe(cls) -> Probe:
        return with_packages(find_devices(), XPU)

    def open(self, ordinal: int, options: Mapping[str, str], rank: Rank = Rank()) -> "Device":  # noqa: B008 - frozen
        """Open a GPU.

        Option ``attention``: ``triton``, ``vllm-xpu-kernels``, or ``auto``, which is ``triton`` until the other was
        measured to be faster. ``ipex`` is refused, with the reason.
        """
        attention = read_attention(options, self.name, ("vllm-xpu-kernels", "ipex"))
        if attention == "ipex":
            raise BackendUnavailable(why_no_ipex(find_torch()))
        check_device(type(self), "Intel GPU", ordinal, options, (OPTION,))
        # Here, because plugins are imported before anyone asks for a device.
        from pageport_xpu.device import open_device

        return open_device(ordinal, attention)


def why_no_ipex(torch: InstalledTorch | None) -> str:
    """Say why Intel's extension for PyTorch is not used, in one sentence."""
    found = f"torch {torch.version} is installed" if torch else "torch is not installed"
    return (
        "attention=ipex is not offered: Intel archived its extension for PyTorch in 2026, whose last version, 2.8, "
        f"refuses every torch but 2.8, while pageport[xpu] needs 2.9 or later ({found}); "
        "use attention=vllm-xpu-kernels or attention=triton."
    )


@hookimpl
def pageport_backends() -> list[type[Backend]]:
    return [XpuBackend]
