"""``list_gpus``: GPUs as the driver's management library (NVML) lists them, whatever this process may see."""

import ctypes
from collections.abc import Iterator
from typing import Any

from pageport_cuda.gpu import NAME_BYTES, DriverReport, Gpu, call

FILE = "libnvidia-ml.so.1"


def list_gpus(library: Any) -> DriverReport:
    """Initialise the library, ask, and leave it.

    Raises:
        DriverError: the driver does not answer.
    """
    call(library, "nvmlInit_v2")
    try:
        driver = ctypes.create_string_buffer(NAME_BYTES)
        call(library, "nvmlSystemGetDriverVersion", driver, NAME_BYTES)
        return DriverReport(driver.value.decode(), list(_gpus(library)))
    finally:
        library.nvmlShutdown()


def _gpus(library: Any) -> Iterator[Gpu]:
    count = ctypes.c_uint()
    call(library, "nvmlDeviceGetCount_v2", ctypes.byref(count))
    for index in range(count.value):
        handle, major, minor = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
        name, identity = (ctypes.create_string_buffer(NAME_BYTES) for _ in range(2))
        call(library, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        call(library, "nvmlDeviceGetName", handle, name, NAME_BYTES)
        call(library, "nvmlDeviceGetUUID", handle, identity, NAME_BYTES)
        call(library, "nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
        yield Gpu(name.value.decode(), identity.value.decode(), (major.value, minor.value))
