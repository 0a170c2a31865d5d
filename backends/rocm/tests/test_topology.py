"""GPUs are found in the kernel driver's files, and what is wrong is said in one sentence."""

import os
from pathlib import Path

import pytest

from pageport_rocm.topology import architecture_name, find_devices


def topology(root: Path, *versions: int, has_file: bool = True) -> Path:
    """Write nodes: a processor, then GPUs of these versions, then one that this container may not read."""
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    for number, version in enumerate((0, *versions)):
        (nodes / str(number)).mkdir(parents=True)
        simd_count = 304 if version else 0
        text = f"cpu_cores_count 0\nsimd_count {simd_count}\ngfx_target_version {version}\nunique_id {number + 10}\n"
        (nodes / str(number) / "properties").write_text(text)
    (nodes / "99").mkdir()
    (root / "dev").mkdir()
    if has_file:
        (root / "dev/kfd").touch()
    return root


@pytest.mark.parametrize(
    ("version", "name"),
    [(90010, "gfx90a"), (90402, "gfx942"), (90500, "gfx950"), (110000, "gfx1100"), (120001, "gfx1201")],
)
def test_architecture_is_read_from_its_number(version, name):
    assert architecture_name(version) == name


def test_gpus_are_counted_and_processors_are_not(tmp_path):
    probe = find_devices(topology(tmp_path, 90402, 90402), {})
    assert (probe.count, probe.details) == (2, {"device": "gfx942"})


@pytest.mark.parametrize("variable", ["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
def test_variables_leave_some(tmp_path, variable):
    root = topology(tmp_path, 90402, 90402)
    assert find_devices(root, {variable: "1"}).count == 1
    assert find_devices(root, {variable: "GPU-b"}).count == 1
    assert find_devices(root, {variable: ""}).reason == f"{variable}= hides all 2 GPUs. Unset it."


@pytest.mark.parametrize(
    ("versions", "has_file", "words"),
    [
        ((), True, "The AMD GPU driver has no GPU. Check lspci."),
        ((90402,), False, "/dev/kfd is missing. Give the container --device /dev/kfd --device /dev/dri."),
        ((100300,), True, "There are no kernels for gfx1030, only for gfx90a, gfx942, gfx950, gfx1100."),
    ],
)
def test_missing_piece_is_named(tmp_path, versions, has_file, words):
    probe = find_devices(topology(tmp_path, *versions, has_file=has_file), {})
    assert probe.count == 0
    assert probe.reason.startswith(words)


def test_missing_driver_is_named(tmp_path):
    assert find_devices(tmp_path, {}).reason.startswith("No AMD GPU driver here (/sys/class/kfd is missing).")


def test_closed_device_file_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    probe = find_devices(topology(tmp_path, 90402), {})
    assert probe.reason == "/dev/kfd may not be opened by this user. Add the user to the group render."
