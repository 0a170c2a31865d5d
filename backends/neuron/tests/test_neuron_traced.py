"""Tests in ``traced``, each in a process where signatures are not checked: torch cannot trace the checks."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "traced"
ROOT = FOLDER.parents[3]


def run(marked: str, *names: str) -> None:
    files = [str(FOLDER / f"{name}.py") for name in names]
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "--show-capture=no", "-m", marked, *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_tests_of_tracing_pass():
    run("not full", "compiler", "program")


@pytest.mark.full
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("name", ["program", "conformance", "architectures"])
def test_long_tests_of_tracing_pass(name):
    run("full", name)
