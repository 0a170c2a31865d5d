"""``find_devices``: NVIDIA GPUs, found without torch and without a CUDA context."""

import ctypes
import os
from collections.abc import Callable, Mapping
from typing import Any

from pageport.backend import Probe
from pageport_cuda import driver_library, management_library
from pageport_cuda.gpu import DriverError, DriverReport
from pageport_triton.visible_devices import count_visible

VISIBLE = "CUDA_VISIBLE_DEVICES"
# Kernels are compiled for these and newer: bfloat16 matrix instructions and asynchronous copies start here.
OLDEST_CAPABILITY = (8, 0)


def find_devices(load: Callable[[str], Any] = ctypes.CDLL, environ: Mapping[str, str] = os.environ) -> Probe:
    """Return the GPUs that this process may use, or why there are none."""
    try:
        driver = load(driver_library.FILE)
    except OSError as error:
        return _none(f"no NVIDIA driver here ({_first_line(error)}). Install it, or start the container with it")
    setting = environ.get(VISIBLE)
    try:
        try:
            report = management_library.list_gpus(load(management_library.FILE))
        except OSError:  # a container may be given the one and not the other
            report, setting = driver_library.list_gpus(driver), None
    except DriverError as error:
        return _none(f"the NVIDIA driver does not answer ({error}). Run nvidia-smi to see why, and repair the driver")
    return _judge(report, setting)


def _judge(report: DriverReport, setting: str | None) -> Probe:
    if not report.gpus:
        return _none(f"the NVIDIA driver {report.driver} shows no GPU. Give the container one, look at {VISIBLE}")
    usable = [gpu for gpu in report.gpus if gpu.capability >= OLDEST_CAPABILITY]
    if not usable:
        needed, found = (".".join(map(str, pair)) for pair in (OLDEST_CAPABILITY, report.gpus[0].capability))
        return _none(f"{report.gpus[0].name} has compute capability {found}, kernels need {needed}. Use --backend cpu")
    count = count_visible(setting, [gpu.identity for gpu in report.gpus])
    if not count:
        return _none(f"{VISIBLE}={setting} hides all GPUs. Unset it")
    capability = ".".join(map(str, usable[0].capability))
    details = {"device": usable[0].name, "compute capability": capability, "driver": report.driver}
    return Probe(count=count, details=details)


def _none(sentence: str) -> Probe:
    return Probe(count=0, reason=f"{sentence[0].upper()}{sentence[1:]}.")


def _first_line(error: OSError) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
