"""Wheels bring compiled kernels where there is a compiler, and say so where there is none."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pageport_cpu.compiler import KERNELS, Kernels, find_compiler
from pageport_cpu.instruction_sets import compilable_sets

ROOT = Path(__file__).parents[2]
PLATFORM = sysconfig.get_platform().replace("-", "_").replace(".", "_")
LIBRARIES = {f"pageport_cpu/built/{Kernels().library_name(target)}" for target in compilable_sets()}
# Whether kernels are there, from where, and what loading them says.
TRY_THE_KERNELS = """
import pageport_cpu
from pageport_cpu.library import LibraryUnavailable, load_library
from pageport_cpu.kernel_store import describe_kernels
from pageport_cpu.plugin import CpuBackend
print(pageport_cpu.__file__)
print(describe_kernels())
try:
    print(load_library().instruction_set, "loaded")
except LibraryUnavailable as error:
    print(error)
print(type(CpuBackend().open(0, {})).__name__)
"""


def build(target: str, source: Path, folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    environ = {**os.environ, **environment}
    return subprocess.run(command, cwd=source, env=environ, capture_output=True, text=True, check=True)


def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


def install(wheel: Path, folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", "--no-index", "--target", str(folder), str(wheel)], check=True)


def run_without_compiler(installed: Path, *arguments: str) -> list[str]:
    """Return what Python prints in a process that finds the installed wheel and no compiler."""
    environ = {"PATH": "", "PYTHONPATH": str(installed), "PAGEPORT_CACHE": str(installed / "cache"), "COLUMNS": "200"}
    done = subprocess.run([sys.executable, *arguments], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def try_the_kernels(wheel: Path, folder: Path) -> list[str]:
    install(wheel, folder)
    file, *said = run_without_compiler(folder, "-c", TRY_THE_KERNELS)
    assert Path(file).is_relative_to(folder)
    return said


def test_without_a_compiler_the_wheel_is_for_any_platform(tmp_path: Path) -> None:
    done = build("wheel", ROOT, tmp_path / "wheels", CXX="none")
    assert "No C++ compiler" in done.stderr + done.stdout
    (wheel,) = (tmp_path / "wheels").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")
    sources = {f"pageport_cpu/kernels/{path.name}" for path in KERNELS.iterdir() if path.suffix in (".cpp", ".h")}
    assert sources <= names(wheel)
    assert not [name for name in names(wheel) if "/built/" in name or name.endswith(".so")]
    described, loaded, device = try_the_kernels(wheel, tmp_path / "installed")
    assert device == "CpuDevice"
    assert described.startswith("none: there is no C++ compiler. Install")
    assert "apt install g++" in loaded


@pytest.mark.full
def test_without_a_compiler_the_backend_conforms_on_torch_operations(tmp_path: Path) -> None:
    build("wheel", ROOT, tmp_path / "wheels", CXX="none")
    install(next((tmp_path / "wheels").iterdir()), tmp_path / "installed")
    levels = [option for level in range(6) for option in ("--level", str(level))]
    printed = run_without_compiler(tmp_path / "installed", "-m", "pageport", "conformance", "cpu", *levels)
    assert printed[-1].startswith("cpu passes")


def hook(version: str) -> dict[str, Any]:
    """Return what the build hook adds to a wheel."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    silent = SimpleNamespace(display_warning=lambda text: None, display_info=lambda text: None)
    made = module.KernelsBuildHook(str(ROOT), {}, None, None, "", "wheel", silent)
    build_data: dict[str, Any] = {"force_include": {}}
    made.initialize(version, build_data)
    return build_data


def test_an_editable_install_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pageport_cpu.compiler.compile_library", lambda *arguments: pytest.fail("compiled"))
    assert hook("editable") == {"force_include": {}}


def test_the_hook_adds_a_library_for_every_instruction_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = []

    def compile_library(target: Any, folder: Path, compiler: str) -> Path:
        made.append(target.name)
        return tmp_path / Kernels().library_name(target)

    monkeypatch.setattr("pageport_cpu.compiler.compile_library", compile_library)
    build_data = hook("standard")
    assert made == [target.name for target in compilable_sets()]
    assert set(build_data["force_include"].values()) == LIBRARIES
    assert (build_data["tag"], build_data["pure_python"]) == (f"py3-none-{PLATFORM}", False)


@pytest.fixture(scope="module")
def compiled_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert find_compiler() is not None, "these tests need a C++ compiler"
    folder = tmp_path_factory.mktemp("compiled")
    build("wheel", ROOT, folder)
    return next(folder.glob("*.whl"))


@pytest.mark.full
@pytest.mark.timeout(900)
def test_with_a_compiler_the_wheel_brings_every_library(compiled_wheel: Path, tmp_path: Path) -> None:
    assert compiled_wheel.name.endswith(f"-py3-none-{PLATFORM}.whl")
    assert {name for name in names(compiled_wheel) if name.endswith(".so")} == LIBRARIES
    described, loaded, device = try_the_kernels(compiled_wheel, tmp_path)
    assert device == "NativeCpuDevice"
    assert described.endswith(" (compiled)")
    assert loaded.endswith(" loaded")


@pytest.mark.full
@pytest.mark.timeout(900)
def test_a_source_distribution_builds_the_same_wheel(compiled_wheel: Path, tmp_path: Path) -> None:
    build("sdist", ROOT, tmp_path)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    # Objects are named by what they are made of: those of the other wheel are linked again, if nothing differs.
    shutil.copytree(ROOT / "build" / "kernels" / "objects", source / "build" / "kernels" / "objects")
    num_objects = len(list((source / "build" / "kernels" / "objects").iterdir()))
    build("wheel", source, tmp_path / "wheels")
    assert len(list((source / "build" / "kernels" / "objects").iterdir())) == num_objects
    (wheel,) = (tmp_path / "wheels").iterdir()
    assert wheel.name == compiled_wheel.name
    assert contents(wheel) == contents(compiled_wheel)


def test_the_container_image_has_what_a_wheel_is_built_from() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    copied = set(re.findall(r"[\w./-]+", " ".join(re.findall(r"^COPY (.*)", (ROOT / "Dockerfile").read_text(), re.M))))
    assert {name.lstrip("/") for name in project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]} <= copied
