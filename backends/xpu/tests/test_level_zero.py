"""GPUs are found through files and Level Zero, and what is wrong is said in one sentence."""

from pathlib import Path
from typing import Any

import pytest

from pageport_xpu.level_zero import find_devices


class Loader:
    """Level Zero's functions, answering for two drivers."""

    def __init__(self, devices: int, status: int = 0) -> None:
        self._devices, self._status = devices, status

    def __call__(self, name: str) -> "Loader":
        assert name == "libze_loader.so.1"
        return self

    def zeInit(self, flags: Any) -> int:
        return self._status

    def zeDriverGet(self, count: Any, drivers: Any) -> int:
        count._obj.value = 2
        if drivers is not None:
            drivers[0], drivers[1] = 11, 12
        return 0

    def zeDeviceGet(self, driver: Any, count: Any, devices: Any) -> int:
        count._obj.value = {11: 0, 12: self._devices}[driver.value]
        return 0


def missing(name: str) -> Any:
    raise OSError(f"{name}: cannot open shared object file")


def machine(root: Path, vendor: str = "0x8086", has_file: bool = True) -> Path:
    (root / "sys/class/drm/renderD128/device").mkdir(parents=True)
    (root / "sys/class/drm/renderD128/device/vendor").write_text(f"{vendor}\n")
    (root / "dev/dri").mkdir(parents=True)
    if has_file:
        (root / "dev/dri/renderD128").touch()
    return root


def test_gpus_of_all_drivers_are_counted(tmp_path):
    assert find_devices(machine(tmp_path), Loader(3)).count == 3


@pytest.mark.parametrize(
    ("made", "load", "words"),
    [
        ({"vendor": "0x10de"}, Loader(1), "No Intel GPU driver has a GPU here (/sys/class/drm). Load i915 or xe"),
        ({"has_file": False}, Loader(1), "An Intel GPU is here, but not its file in /dev/dri. Give the container"),
        ({}, missing, "An Intel GPU is here, but not Level Zero (libze_loader.so.1). Install it"),
        ({}, Loader(1, 0x78000001), "Level Zero finds no GPU driver (zeInit returns 0x78000001). Install"),
        ({}, Loader(0), "Level Zero has no GPU. Join the group render"),
    ],
)
def test_missing_piece_is_named(tmp_path, made, load, words):
    probe = find_devices(machine(tmp_path, **made), load)
    assert probe.count == 0
    assert probe.reason.startswith(words)
