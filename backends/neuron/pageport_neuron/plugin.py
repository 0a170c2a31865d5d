"""Entry point: imports no torch. Devices are found, but cannot be opened: this pageport has no kernels for them."""

import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

from pageport.backend import Backend, Probe, Rank, hookimpl
from pageport.errors import BackendUnavailable

if TYPE_CHECKING:
    from pageport.backend.device import Device

PACKAGE = "torch-neuronx"
_NOT_YET = "this pageport cannot compute on Neuron devices yet. Use --backend cpu."


class NeuronBackend(Backend):
    """AWS Inferentia and Trainium."""

    name = "neuron"
    interface = (0, 1)

    @classmethod
    def probe(cls) -> Probe:
        return Probe(count=0, reason=explain_absence())

    def open(self, ordinal: int, options: Mapping[str, str], rank: Rank = Rank()) -> "Device":  # noqa: B008 - frozen
        """Refuse, saying why."""
        raise BackendUnavailable(explain_absence())


def explain_absence(root: Path = Path("/"), path: Sequence[str] | None = None) -> str:
    """Say what of driver, package and code is missing, and what to do.

    Args:
        root: of the file system; tests make one of their own.
        path: folders to look for the package in; default: where imports look.
    """
    devices = len(list((root / "dev").glob("neuron[0-9]*")))
    found = f"{devices} found" if devices else "none here (/dev/neuron0 is missing)"
    return f"Neuron devices: {found}; {_describe_package(_installed_version(path))}; {_NOT_YET}"


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
