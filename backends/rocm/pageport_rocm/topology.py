"""``find_devices``: AMD GPUs as the kernel driver's files list them."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pageport.backend import Probe
from pageport_triton.architectures import AMD_CLASSES
from pageport_triton.visible_devices import count_visible

# What the runtimes read; each hides what the one before leaves.
VISIBLE = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


class Gpu(NamedTuple):
    """One node of the topology that computes."""

    architecture: str  # "gfx942"
    identity: str


def find_devices(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> Probe:
    """Return the GPUs that this process may use, or why there are none.

    Args:
        root: of the file system; tests make one of their own.
    """
    nodes, device_file = root / "sys/class/kfd/kfd/topology/nodes", root / "dev/kfd"
    if not nodes.is_dir():
        return _none("no AMD GPU driver here (/sys/class/kfd is missing). Install it, or give the container /dev/kfd")
    gpus = list(_gpus(nodes))
    if not gpus:
        return _none("the AMD GPU driver has no GPU. Check lspci")
    if not device_file.exists():
        return _none("/dev/kfd is missing. Give the container --device /dev/kfd --device /dev/dri")
    if not os.access(device_file, os.R_OK | os.W_OK):
        return _none("/dev/kfd may not be opened by this user. Add the user to the group render")
    usable = [gpu for gpu in gpus if gpu.architecture in AMD_CLASSES]
    if not usable:
        known = ", ".join(AMD_CLASSES)
        return _none(f"there are no kernels for {gpus[0].architecture}, only for {known}. Use --backend cpu")
    count = len(usable)
    for variable in VISIBLE:
        count = min(count, count_visible(environ.get(variable), [gpu.identity for gpu in usable]))
        if not count:
            return _none(f"{variable}={environ[variable]} hides all {len(usable)} GPUs. Unset it")
    return Probe(count=count, details={"device": usable[0].architecture})


def _none(sentence: str) -> Probe:
    return Probe(count=0, reason=f"{sentence[0].upper()}{sentence[1:]}.")


def _gpus(nodes: Path) -> Iterator[Gpu]:
    """Yield the nodes with vector units; the others are processors, or closed to this container."""
    for node in sorted(nodes.iterdir(), key=lambda folder: (len(folder.name), folder.name)):
        try:
            lines = (node / "properties").read_text().splitlines()
        except OSError:
            continue
        properties = dict(line.split(maxsplit=1) for line in lines if " " in line)
        version = int(properties.get("gfx_target_version", "0"))
        if version and int(properties.get("simd_count", "0")):
            yield Gpu(architecture_name(version), f"GPU-{int(properties.get('unique_id', '0')):x}")


def architecture_name(version: int) -> str:
    """Return ``gfx90a`` for 90010: two decimal digits each for minor version and stepping, which is a hex digit."""
    major, minor, stepping = version // 10000, version // 100 % 100, version % 100
    return f"gfx{major}{minor:x}{stepping:x}"
