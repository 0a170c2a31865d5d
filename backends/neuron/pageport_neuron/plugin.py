"""Entry point: imports no torch and nothing of the vendor's."""

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

from pageport.backend import Backend, Probe, Rank, hookimpl
from pageport.errors import BackendUnavailable
from pageport_neuron.environment import set_cache, set_compile_only
from pageport_neuron.options import NeuronOptions

if TYPE_CHECKING:
    from pageport.backend.device import Device

PACKAGE = "torch-neuronx"
# Physical cores that make one logical core, unless the environment says otherwise: Trn2's default.
CORES_PER_LOGICAL_CORE = 2
LOGICAL_CORE_VARIABLE = "NEURON_LOGICAL_NC_CONFIG"


class NeuronBackend(Backend):
    """AWS Trainium, one logical core as one device."""

    name = "neuron"
    interface = (1, 0)
    priority = 20

    @classmethod
    def probe(cls) -> Probe:
        return find_devices()

    def open(self, ordinal: int, options: Mapping[str, str], rank: Rank = Rank()) -> "Device":  # noqa: B008 - frozen
        """Open a logical core; ``NeuronOptions`` are the options."""
        parsed = NeuronOptions.parse(options)
        found = self.probe()
        if not 0 <= ordinal < found.count:
            raise BackendUnavailable(f"There is no Neuron device {ordinal}: {found.reason or f'{found.count} found'}.")
        set_cache(parsed)
        # Here, because plugins are imported before anyone asks for a device.
        from pageport_neuron.device import HardwareDevice

        return HardwareDevice(parsed, ordinal)

    def simulate(self, options: Mapping[str, str]) -> "Device":
        from pageport_neuron.device import simulated_device

        return simulated_device(NeuronOptions.parse(options))

    def open_compiler(self, options: Mapping[str, str]) -> "Device":
        parsed = NeuronOptions.parse(options)
        set_compile_only(parsed)
        from pageport_neuron.device import compiling_device

        return compiling_device(parsed)


def find_devices(root: Path = Path("/"), path: Sequence[str] | None = None) -> Probe:
    """Count logical cores, or say what of driver and package is missing, and what to do.

    Args:
        root: of the file system; tests make one of their own.
        path: folders to look for the package in; default: where imports look.
    """
    chips = sorted((root / "dev").glob("neuron[0-9]*"))
    version = _installed_version(path)
    is_real = version is not None and version.split(".")[0] not in ("0", "1")
    if chips and is_real:
        cores = sum(_logical_cores(root, chip.name) for chip in chips)
        return Probe(count=cores, details={"chips": str(len(chips)), PACKAGE: str(version)})
    found = f"{len(chips)} found" if chips else "none here (/dev/neuron0 is missing)"
    return Probe(count=0, reason=f"Neuron chips: {found}; {_describe_package(version)}")


def _logical_cores(root: Path, chip: str) -> int:
    """Return a chip's logical cores: 1 where the driver does not tell."""
    try:
        cores = int((root / "sys/devices/virtual/neuron_device" / chip / "core_count").read_text())
        per_logical = int(os.environ.get(LOGICAL_CORE_VARIABLE, CORES_PER_LOGICAL_CORE))
    except (OSError, ValueError):
        return 1
    return max(1, cores // max(1, per_logical))


def _describe_package(version: str | None) -> str:
    if version is None:
        return f"{PACKAGE} is not installed, it comes from AWS's own index only"
    if version.split(".")[0] in ("0", "1"):
        return (
            f"{PACKAGE} {version} is PyPI's placeholder, not the package: uninstall it, the real one comes from AWS's "
            "own index"
        )
    return f"{PACKAGE} {version} is installed"


def _installed_version(path: Sequence[str] | None) -> str | None:
    found = next(iter(distributions(name=PACKAGE, path=list(sys.path if path is None else path))), None)
    return None if found is None else found.version


@hookimpl
def pageport_backends() -> list[type[Backend]]:
    return [NeuronBackend]
