"""``list_gpus``: GPUs as the driver itself lists them: without a context, but slower to start than NVML."""

import ctypes
from collections.abc import Iterator
from typing import Any

from pageport_cuda.gpu import NAME_BYTES, DriverReport, Gpu, call

FILE = "libcuda.so.1"
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
# CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
_CAPABILITY = (75, 76)


def list_gpus(library: Any) -> DriverReport:
    """Initialise the driver in this process and ask it; it leaves out what ``CUDA_VISIBLE_DEVICES`` hides.

    Raises:
        DriverError: the driver does not answer.
    """
    version = ctypes.c_int()
    call(library, "cuDriverGetVersion", ctypes.byref(version))
    driver = f"for CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    if library.cuInit(0) == NO_DEVICE:
        return DriverReport(driver, [])
    call(library, "cuInit", 0)
    return DriverReport(driver, list(_gpus(library)))


def _gpus(library: Any) -> Iterator[Gpu]:
    count = ctypes.c_int()
    call(library, "cuDeviceGetCount", ctypes.byref(count))
    for index in range(count.value):
        device, name = ctypes.c_int(), ctypes.create_string_buffer(NAME_BYTES)
        call(library, "cuDeviceGet", ctypes.byref(device), index)
        call(library, "cuDeviceGetName", name, NAME_BYTES, device)
        yield Gpu(name.value.decode(), str(index), (_capability(library, device, 0), _capability(library, device, 1)))


def _capability(library: Any, device: ctypes.c_int, part: int) -> int:
    value = ctypes.c_int()
    call(library, "cuDeviceGetAttribute", ctypes.byref(value), _CAPABILITY[part], device)
    return value.value
