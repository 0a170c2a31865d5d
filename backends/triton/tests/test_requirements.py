"""A backend whose devices are there says which package is missing or wrong, and imports none to find out."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from pageport.backend import Probe
from pageport_triton.installed_torch import find_torch
from pageport_triton.requirements import CUDA, ROCM, XPU, Needs, with_packages

FOUND = Probe(count=2, details={"device": "Some GPU"})


def packages(root: Path, torch: dict[str, str] | None, has_triton: bool = True) -> list[str]:
    """Write packages that fail when they are imported; ``torch`` gives its version file's assignments."""
    for name in ("torch",) * (torch is not None) + ("triton",) * has_triton:
        (root / name).mkdir()
        (root / name / "__init__.py").write_text("raise ImportError('imported')\n")
    if torch is not None:
        lines = [f"{name}: Optional[str] = {value!r}" for name, value in torch.items()]
        text = "\n".join(
            ["from typing import Optional", "__version__ = '2.11.0+x'", "hip: Optional[str] = None", *lines]
        )
        (root / "torch" / "version.py").write_text(text)
    return [str(root)]


@pytest.mark.parametrize(
    ("needs", "torch"), [(CUDA, {"cuda": "13.0"}), (ROCM, {"hip": "7.1", "cuda": None}), (XPU, {"xpu": "20260100"})]
)
def test_right_packages_leave_the_devices_and_are_named(tmp_path, needs, torch):
    probe = with_packages(FOUND, needs, packages(tmp_path, torch))
    version = next(value for value in torch.values() if value)
    assert (probe.count, probe.details["torch"]) == (2, f"2.11.0+x, {needs.hardware} {version}")


@pytest.mark.parametrize(
    ("needs", "torch", "has_triton", "words"),
    [
        (CUDA, None, True, 'torch is not installed. Run: pip install "pageport[cuda]"'),
        (CUDA, {"cuda": None}, True, "torch 2.11.0+x is a CPU build and not one for CUDA. Uninstall it, then run: pip"),
        (CUDA, {"hip": "7.1"}, True, "torch 2.11.0+x is a ROCm build and not one for CUDA."),
        (
            ROCM,
            {"cuda": "13.0"},
            True,
            "torch 2.11.0+x is a CUDA build and not one for ROCm. Uninstall it. Install",
        ),
        (XPU, {"cuda": None}, True, "torch 2.11.0+x is a CPU build and not one for XPU. Uninstall it. Install the XPU"),
        (ROCM, {"xpu": "2026"}, True, "torch 2.11.0+x is an XPU build and not one for ROCm."),
        (XPU, None, True, "torch is not installed. Install the XPU build that pytorch.org/get-started names, then"),
        (CUDA, {"cuda": "13.0"}, False, "triton, which compiles the kernels, is not installed. Run: pip install"),
        (ROCM, {"hip": "7.1"}, False, "triton, which compiles the kernels, is not installed. Install the ROCm build"),
    ],
)
def test_missing_or_wrong_package_is_named(tmp_path, needs: Needs, torch, has_triton, words):
    probe = with_packages(FOUND, needs, packages(tmp_path, torch, has_triton))
    assert probe.count == 0
    assert probe.reason.startswith(f"2 × Some GPU found, but {words}")


def test_missing_device_comes_before_missing_packages(tmp_path):
    absent = Probe(count=0, reason="No driver.")
    assert with_packages(absent, CUDA, packages(tmp_path, None)) is absent


def test_torch_that_is_here_is_read_as_it_describes_itself():
    import torch

    found = find_torch()
    assert found is not None
    assert found == (torch.__version__, torch.version.cuda, torch.version.hip, torch.version.xpu)


def test_probes_import_neither_torch_nor_triton_and_are_quick():
    code = (
        "import sys, time; from importlib import import_module\n"
        "modules = [import_module(f'pageport_{name}.plugin') for name in ('cuda', 'rocm', 'xpu', 'neuron')]\n"
        "for module in modules:\n"
        "    start = time.process_time(); probe = module.pageport_backends()[0].probe()\n"
        "    assert time.process_time() - start < 0.1 and (probe.count or probe.reason), probe\n"
        "print(sorted({'torch', 'triton', 'numpy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


@pytest.mark.parametrize("name", ("cuda", "rocm", "xpu"))
def test_products_and_sums_are_fused_as_in_the_compile_check(name: str) -> None:
    plugin = import_module(f"pageport_{name}.plugin")
    (backend,) = plugin.pageport_backends()
    assert backend.environment["TRITON_DEFAULT_FP_FUSION"] == "1"
