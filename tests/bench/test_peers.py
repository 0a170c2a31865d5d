"""What the script that makes the peers says before it installs anything."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bench" / "peers.sh"


def run_script(folder: Path, *names: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PAGEPORT_PEERS": str(folder), "PYTHON": "no-such-python", **environment}
    return subprocess.run([str(SCRIPT), *names], capture_output=True, text=True, env=variables, check=False)


def test_an_unknown_peer_is_refused_with_the_known_names(tmp_path: Path) -> None:
    done = run_script(tmp_path, "tgi")
    assert done.returncode == 1
    assert "there is no peer called tgi (llama.cpp, xllamacpp, vllm, openvino, transformers, models)" in done.stderr


@pytest.mark.parametrize("name", ["llama.cpp", "vllm"])
def test_a_peer_that_is_ready_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "versions.txt").write_text("thing==1\nother==2\n")
    done = run_script(tmp_path, name)
    assert (done.returncode, done.stdout) == (0, f"{name} is ready: thing==1 other==2 \n")


def test_models_without_their_makers_say_which_to_make_first(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    done = run_script(tmp_path, "models", GGUF=str(tmp_path / "model.gguf"))
    assert done.returncode == 1
    assert "transformers and openvino: make these first" in done.stderr
    assert not (tmp_path / "models" / "versions.txt").exists()


def test_a_failed_environment_does_not_count_as_ready(tmp_path: Path) -> None:
    done = run_script(tmp_path, "xllamacpp")
    assert done.returncode == 1
    assert "no-such-python could not make" in done.stderr
    assert not (tmp_path / "xllamacpp" / "versions.txt").exists()
