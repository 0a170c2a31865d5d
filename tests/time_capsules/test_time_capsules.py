"""Backends that were built against each published interface version work with this core, as they are."""

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pageport.backend.discovery import is_served
from pageport.backend.interface import INTERFACE
from pageport.backend.interface_change import version_of

FOLDER = Path(__file__).parent
WHEELS = sorted(FOLDER.glob("*/*.whl"))
SERVED = [
    pytest.param(wheel, id=wheel.parent.name)
    for wheel in WHEELS
    if is_served(version_of((wheel.parent / "interface.lock").read_text()))
]


def run(command: list[str], *installed: Path) -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, installed)), "COLUMNS": "200"}
    return subprocess.run([sys.executable, *command], env=environ, capture_output=True, text=True, check=False)


def build(folder: Path) -> "subprocess.CompletedProcess[str]":
    return run([str(FOLDER / "build.py"), "--folder", str(folder)])


def test_capsules_are_what_they_were_when_they_were_built() -> None:
    kept = {str(path.relative_to(FOLDER)): path for path in FOLDER.glob("*.*/*")}
    lines = (FOLDER / "checksums.txt").read_text().splitlines()
    written = dict(reversed(line.split("  ")) for line in lines)
    assert len(written) == len(lines)
    assert {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in kept.items()} == written
    assert len(kept) == 2 * len(WHEELS)


@pytest.mark.parametrize("wheel", SERVED)
def test_a_capsule_says_which_interface_it_was_written_for(wheel: Path) -> None:
    version = version_of((wheel.parent / "interface.lock").read_text())
    plugin = zipfile.ZipFile(wheel).read("pageport_example/plugin.py").decode()
    assert re.findall(r"interface = (.*?)  #", plugin) == [str(version)]
    assert wheel.parent.name == "{}.{}".format(*version)


@pytest.mark.parametrize("wheel", SERVED)
def test_an_unpacked_capsule_passes_the_quick_levels_and_runs_an_engine(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    done = run([str(FOLDER / "judge.py")], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("[0, 1, 2, 5] example passes")


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("wheel", SERVED)
def test_an_installed_capsule_passes_levels_0_to_5(wheel: Path, tmp_path: Path) -> None:
    pip = ["-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps", "--no-index"]
    assert run([*pip, "--target", str(tmp_path), str(wheel)]).returncode == 0
    levels = [option for level in range(6) for option in ("--level", str(level))]
    done = run(["-m", "pageport", "conformance", "example", *levels], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^5 engine +(\d+)/\1 ", done.stdout, re.MULTILINE)


@pytest.mark.full
@pytest.mark.parametrize("method", ["prefill_attention", "check_attention"])
@pytest.mark.parametrize("wheel", SERVED)
def test_a_capsule_notices_a_core_that_breaks_the_promise(wheel: Path, tmp_path: Path, method: str) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    judge = f"import runpy; runpy.run_path({str(FOLDER / 'judge.py')!r}, run_name='__main__')"
    done = run(["-c", f"from pageport.backend.device import Device; del Device.{method}; {judge}"], tmp_path)
    assert done.returncode == 1
    assert "engine/llama/together" in done.stderr
    assert method in done.stderr


def test_a_capsule_is_made_of_the_sources_alone_and_never_made_again(tmp_path: Path) -> None:
    for name in ("first", "second"):
        done = build(tmp_path / name)
        assert done.returncode == 0, done.stderr
    first, second = (
        sorted(path for path in (tmp_path / name).rglob("*.*") if path.is_file()) for name in ("first", "second")
    )
    assert [path.name for path in first] == [
        "interface.lock",
        "pageport_example-0.1.0-py3-none-any.whl",
        "checksums.txt",
    ]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    again = build(tmp_path / "first")
    assert again.returncode == 1
    assert "{}.{} is there already".format(*INTERFACE) in again.stderr
