"""``find_chips``: which TPUs are here and what is missing to use them, without loading a framework."""

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from pageport.backend import Probe

# "1": offer one device that JAX's CPU backend simulates, for tests and for looking at programs.
SIMULATE = "PAGEPORT_TPU_SIMULATE"
GOOGLE = "0x1ae0"  # the PCI vendor


def find_chips(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> Probe:
    """Count chips by their device files, and name the packages that drive them."""
    jax = _version("jax")
    if is_simulated(environ):
        if jax is None:
            return Probe(count=0, reason=f'{SIMULATE} is set, but jax is not installed. Run: pip install "jax[cpu]"')
        return Probe(count=1, details={"device": "simulated on the host", "jax": jax})
    count = _count_chips(root)
    if not count:
        return Probe(
            count=0,
            reason=f"No TPU found: neither /dev/accel* nor a TPU among /dev/vfio/*. {SIMULATE}=1 simulates one.",
        )
    libtpu = _version("libtpu")
    if jax is None or libtpu is None:
        missing = "jax" if jax is None else "libtpu"
        return Probe(count=0, reason=f'TPU found, but {missing} is not installed. Run: pip install "pageport-tpu[tpu]"')
    return Probe(count=count, details={"device": "TPU", "jax": jax, "libtpu": libtpu})


def is_simulated(environ: Mapping[str, str] = os.environ) -> bool:
    """Tell whether a simulated device is asked for."""
    return environ.get(SIMULATE) == "1"


def _count_chips(root: Path) -> int:
    """Count ``/dev/accel<n>``; newer chips are PCI devices that are bound to vfio-pci instead."""
    if accelerators := list(root.glob("dev/accel[0-9]*")):
        return len(accelerators)
    if not any(root.glob("dev/vfio/[0-9]*")):
        return 0
    return sum(_vendor(path) == GOOGLE for path in root.glob("sys/bus/pci/drivers/vfio-pci/*/vendor"))


def _vendor(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
