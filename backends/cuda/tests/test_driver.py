"""GPUs are found through either of the driver's libraries, and what is wrong is said in one sentence."""

import ctypes
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from pageport_cuda.driver import find_devices
from pageport_cuda.gpu import Gpu

BIG = Gpu("Big GPU", "GPU-aaaa", (9, 0))
OLD = Gpu("Old GPU", "GPU-bbbb", (7, 5))


class ManagementLibrary:
    """NVML's functions, answering for made-up GPUs."""

    def __init__(self, gpus: list[Gpu], status: int = 0) -> None:
        self._gpus, self._status, self.is_open = gpus, status, False

    def nvmlInit_v2(self) -> int:
        self.is_open = not self._status
        return self._status

    def nvmlShutdown(self) -> int:
        self.is_open = False
        return 0

    def nvmlSystemGetDriverVersion(self, text: Any, size: int) -> int:
        text.value = b"580.1"
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self._gpus)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: ctypes.c_uint, handle: Any) -> int:
        handle._obj.value = index.value + 1
        return 0

    def nvmlDeviceGetName(self, handle: ctypes.c_void_p, text: Any, size: int) -> int:
        text.value = self._gpus[(handle.value or 0) - 1].name.encode()
        return 0

    def nvmlDeviceGetUUID(self, handle: ctypes.c_void_p, text: Any, size: int) -> int:
        text.value = self._gpus[(handle.value or 0) - 1].identity.encode()
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, handle: ctypes.c_void_p, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = self._gpus[(handle.value or 0) - 1].capability
        return 0


class DriverLibrary:
    """libcuda's functions, answering for GPUs of capability 8.9."""

    def __init__(self, count: int) -> None:
        self._count = count

    def cuDriverGetVersion(self, version: Any) -> int:
        version._obj.value = 13020
        return 0

    def cuInit(self, flags: int) -> int:
        return 0 if self._count else 100

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self._count
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = index
        return 0

    def cuDeviceGetName(self, text: Any, size: int, device: ctypes.c_int) -> int:
        text.value = b"Small GPU"
        return 0

    def cuDeviceGetAttribute(self, value: Any, attribute: int, device: ctypes.c_int) -> int:
        value._obj.value = {75: 8, 76: 9}[attribute]
        return 0


def loader(libraries: Mapping[str, Any]) -> Callable[[str], Any]:
    def load(name: str) -> Any:
        if name not in libraries:
            raise OSError(f"{name}: cannot open shared object file")
        return libraries[name]

    return load


def with_management(gpus: list[Gpu], status: int = 0) -> Callable[[str], Any]:
    return loader({"libcuda.so.1": object(), "libnvidia-ml.so.1": ManagementLibrary(gpus, status)})


def test_gpus_are_counted_and_described():
    probe = find_devices(with_management([BIG, BIG]), {})
    assert (probe.count, probe.reason) == (2, "")
    assert probe.details == {"device": "Big GPU", "compute capability": "9.0", "driver": "580.1"}


def test_management_library_is_left_again():
    library = ManagementLibrary([BIG])
    find_devices(loader({"libcuda.so.1": object(), "libnvidia-ml.so.1": library}), {})
    assert not library.is_open


@pytest.mark.parametrize(("setting", "count"), [("1", 1), ("0,1", 2), ("0,7,1", 1), ("GPU-aa", 1), ("MIG-1", 1)])
def test_variable_leaves_some(setting, count):
    gpus = [BIG, BIG._replace(identity="GPU-cccc")]
    assert find_devices(with_management(gpus), {"CUDA_VISIBLE_DEVICES": setting}).count == count


@pytest.mark.parametrize(
    ("load", "environ", "words"),
    [
        (loader({}), {}, "No NVIDIA driver here (libcuda.so.1: cannot open shared object file). Install it"),
        (with_management([], 9), {}, "The NVIDIA driver does not answer (nvmlInit_v2 returns 9). Run nvidia-smi"),
        (with_management([]), {}, "The NVIDIA driver 580.1 shows no GPU."),
        (loader({"libcuda.so.1": DriverLibrary(0)}), {}, "The NVIDIA driver for CUDA 13.2 shows no GPU."),
        (with_management([OLD]), {}, "Old GPU has compute capability 7.5, kernels need 8.0. Use --backend cpu."),
        (with_management([BIG]), {"CUDA_VISIBLE_DEVICES": ""}, "CUDA_VISIBLE_DEVICES= hides all GPUs. Unset it."),
        (with_management([BIG]), {"CUDA_VISIBLE_DEVICES": "-1"}, "CUDA_VISIBLE_DEVICES=-1 hides all GPUs. Unset it."),
    ],
)
def test_missing_piece_is_named(load, environ, words):
    probe = find_devices(load, environ)
    assert probe.count == 0
    assert probe.reason.startswith(words)


def test_driver_itself_is_asked_where_its_management_library_is_missing():
    probe = find_devices(loader({"libcuda.so.1": DriverLibrary(2)}), {"CUDA_VISIBLE_DEVICES": "0"})
    # The driver leaves out what is hidden by itself.
    assert probe.count == 2
    assert probe.details == {"device": "Small GPU", "compute capability": "8.9", "driver": "for CUDA 13.2"}
