"""``find_devices``: Intel GPUs as the kernel's files and the Level Zero loader list them, without a context."""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pageport.backend import Probe

INTEL = "0x8086"
_GPUS_ONLY = 1  # ZE_INIT_FLAG_GPU_ONLY

Load = Callable[[str], Any]


class LevelZeroError(Exception):
    """A call of the loader failed."""


def find_devices(root: Path = Path("/"), load: Load = ctypes.CDLL) -> Probe:
    """Return the GPUs that this process may use, or why there are none.

    Args:
        root: of the file system; tests make one of their own.
    """
    nodes = [device for device in (root / "sys/class/drm").glob("renderD*/device/vendor") if _is_intel(device)]
    if not nodes:
        return _none("no Intel GPU driver has a GPU here (/sys/class/drm). Load i915 or xe, or give the container one")
    if not any((root / "dev/dri" / node.parents[1].name).exists() for node in nodes):
        return _none("an Intel GPU is here, but not its file in /dev/dri. Give the container --device /dev/dri")
    try:
        library = load("libze_loader.so.1")
    except OSError:
        return _none("an Intel GPU is here, but not Level Zero (libze_loader.so.1). Install it and its GPU driver")
    try:
        count = _count_devices(library)
    except LevelZeroError as error:
        return _none(f"Level Zero finds no GPU driver ({error}). Install intel-level-zero-gpu, join the group render")
    if not count:
        return _none("Level Zero has no GPU. Join the group render, and look at ZE_AFFINITY_MASK")
    return Probe(count=count, details={"device": "Intel GPU"})


def _none(sentence: str) -> Probe:
    return Probe(count=0, reason=f"{sentence[0].upper()}{sentence[1:]}.")


def _is_intel(vendor_file: Path) -> bool:
    try:
        return vendor_file.read_text().strip() == INTEL
    except OSError:
        return False


def _count_devices(library: Any) -> int:
    _check(library, "zeInit", ctypes.c_uint32(_GPUS_ONLY))
    num_drivers = ctypes.c_uint32()
    _check(library, "zeDriverGet", ctypes.byref(num_drivers), None)
    drivers = (ctypes.c_void_p * num_drivers.value)()
    _check(library, "zeDriverGet", ctypes.byref(num_drivers), drivers)
    count = 0
    for driver in drivers:
        num_devices = ctypes.c_uint32()
        _check(library, "zeDeviceGet", ctypes.c_void_p(driver), ctypes.byref(num_devices), None)
        count += num_devices.value
    return count


def _check(library: Any, function: str, *arguments: Any) -> None:
    status = getattr(library, function)(*arguments)
    if status:
        raise LevelZeroError(f"{function} returns {status:#x}")
