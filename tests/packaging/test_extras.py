"""The extras of GPU backends resolve beside the torch that is installed, and leave it alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def resolve(extra: str) -> subprocess.CompletedProcess[str]:
    """Ask pip what it would install."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--report", "-"]
    return subprocess.run([*command, "--editable", f"{ROOT}[{extra}]"], capture_output=True, text=True)


@pytest.mark.full
@pytest.mark.parametrize("extra", ["cuda", "rocm", "xpu"])
def test_extra_leaves_the_installed_torch_alone(extra: str) -> None:
    answer = resolve(extra)
    assert answer.returncode == 0, answer.stderr
    installed = {item["metadata"]["name"].lower() for item in json.loads(answer.stdout)["install"]}
    assert "pageport" in installed
    assert "torch" not in installed


@pytest.mark.full
def test_neuron_is_not_satisfied_by_the_placeholder() -> None:
    answer = resolve("neuron")
    assert answer.returncode != 0
    assert "torch-neuronx>=2" in answer.stderr
