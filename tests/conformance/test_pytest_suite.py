"""The suite as somebody else's pytest module: one import, two fixtures, one test a level."""

import subprocess
import sys
from pathlib import Path

PLUGIN = """
from pageport_cpu.plugin import CpuBackend


class OwnBackend(CpuBackend):
    name = "{name}"
"""
MODULE = """
import pytest
from plugin_of_own import OwnBackend

from pageport.testing.conformance.pytest_suite import *


@pytest.fixture(scope="session")
def backend():
    return OwnBackend


@pytest.fixture(scope="session")
def backend_options():
    return {"threads": "1"}
"""


def run_module(folder: Path, name: str) -> str:
    (folder / "plugin_of_own.py").write_text(PLUGIN.format(name=name))
    (folder / "test_backend.py").write_text(MODULE)
    command = [sys.executable, "-m", "pytest", "-q", "--rootdir", str(folder), "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-k", "discovery", "test_backend.py"], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stdout


def test_a_level_is_a_test(tmp_path):
    assert "1 passed, 8 deselected" in run_module(tmp_path, "own")


def test_a_failed_level_lists_its_failed_checks_with_their_reproductions(tmp_path):
    shown = run_module(tmp_path, "Own")
    assert "Own fails 1 of 18 checks." in shown
    assert "the backend's name is 'Own': it is typed on a command line" in shown
    assert "    pageport conformance Own --backend-option threads=1 --check discovery/name --seed" in shown
