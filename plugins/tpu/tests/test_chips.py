"""What the probe says of machines that are made up."""

from functools import partial
from pathlib import Path

import pytest
from pageport_tpu import chips
from pageport_tpu.chips import find_chips
from pageport_tpu.plugin import TpuBackend

from pageport.errors import BackendUnavailable, ConfigurationError


def machine(root: Path, *files: str, vendor: str = "0x1ae0\n") -> Path:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(vendor if file.endswith("vendor") else "")
    return root


ACCELERATORS = ("dev/accel0", "dev/accel1")
VFIO = ("dev/vfio/0", "dev/vfio/vfio", "sys/bus/pci/drivers/vfio-pci/0000:00:05.0/vendor")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    versions = {"jax": "0.10.2", "libtpu": "0.0.42"}
    monkeypatch.setattr(chips, "_version", versions.get)
    return versions


@pytest.mark.parametrize(("files", "count"), [((), 0), (ACCELERATORS, 2), (VFIO, 1), (VFIO[:2], 0)])
def test_chips_are_counted_by_their_device_files(
    tmp_path: Path, installed: dict[str, str], files: tuple[str, ...], count: int
) -> None:
    probe = find_chips({}, machine(tmp_path, *files))
    assert (probe.count, bool(probe.reason)) == (count, not count)


def test_device_of_another_vendor_is_no_chip(tmp_path: Path, installed: dict[str, str]) -> None:
    probe = find_chips({}, machine(tmp_path, *VFIO, vendor="0x10de\n"))
    assert probe.count == 0
    assert "No TPU found" in probe.reason


@pytest.mark.parametrize("package", ["jax", "libtpu"])
def test_missing_package_is_named_with_what_installs_it(
    tmp_path: Path, installed: dict[str, str], package: str
) -> None:
    del installed[package]
    reason = find_chips({}, machine(tmp_path, *ACCELERATORS)).reason
    assert f'{package} is not installed. Run: pip install "pageport-tpu[tpu]"' in reason


def test_simulation_says_so(tmp_path: Path, installed: dict[str, str]) -> None:
    probe = find_chips({chips.SIMULATE: "1"}, tmp_path)
    assert (probe.count, probe.details["device"]) == (1, "simulated on the host")
    del installed["jax"]
    assert 'pip install "jax[cpu]"' in find_chips({chips.SIMULATE: "1"}, tmp_path).reason


def test_absent_chip_and_unknown_option_are_refused_by_name() -> None:
    with pytest.raises(BackendUnavailable, match="no TPU 7"):
        TpuBackend().open(7, {})
    for open_with in (partial(TpuBackend().open, 0), TpuBackend().simulate):
        with pytest.raises(ConfigurationError, match="'chips'"):
            open_with({"chips": "2"})


def test_simulated_device_needs_no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(chips.SIMULATE)
    device = TpuBackend().simulate({})
    assert device.capabilities.static_shapes
    with pytest.raises(BackendUnavailable, match="no TPU 0"):
        TpuBackend().open(0, {})
