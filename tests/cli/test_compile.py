"""``pageport compile`` names what is missing and lists what it compiled; ``conformance --simulate`` needs no device."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pageport.cli.app import app
from pageport.errors import BackendUnavailable, ConfigurationError, UnsupportedFeature
from pageport.testing.tiny_model import write_tiny_llama

SMALL = ["--max-num-seqs", "4", "--max-model-len", "64", "--dtype", "float32"]
BUCKETS = ["--backend-option", "request_buckets=4", "--backend-option", "token_buckets=32"]


def pageport(*arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments], env={"COLUMNS": "200"})


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (["--num-kv-blocks", "8"], ConfigurationError, "Name what to compile for with --backend"),
        (["--backend", "neuron"], ConfigurationError, "Set --num-kv-blocks, here and when serving"),
        (["--backend", "cpu", "--num-kv-blocks", "8"], UnsupportedFeature, "cpu compiles nothing ahead of time"),
        (["--backend", "neuron", "--num-kv-blocks", "8"], BackendUnavailable, "torch_neuronx cannot be imported"),
        (["--backend", "neuron", "--simulate", "--backend-option", "x"], ConfigurationError, "no key=value pair"),
    ],
)
def test_what_is_missing_is_said(tmp_path, monkeypatch, arguments, error, words):
    for name in ("TORCH_NEURONX_COMPILE_ONLY", "NEURON_PLATFORM_TARGET_OVERRIDE"):
        monkeypatch.setenv(name, "")
    result = pageport("compile", "--model", str(write_tiny_llama(tmp_path)), *arguments)
    assert isinstance(result.exception, error)
    assert words in str(result.exception)


def test_a_backend_that_has_no_simulation_says_so_once():
    result = pageport("conformance", "cpu", "--simulate")
    assert isinstance(result.exception, UnsupportedFeature)
    assert str(result.exception) == "Backend cpu cannot be simulated on the host."


def test_a_simulated_device_is_judged_where_there_is_none(tmp_path):
    result = pageport(
        "conformance", "neuron", "--simulate", "--check", "discovery/probe", "--json", str(tmp_path / "j")
    )
    assert result.exit_code == 0, result.output
    assert "conformance of neuron, simulated on the host" in result.output
    assert "neuron, simulated on the host, passes" in result.output
    assert '"simulated": true' in (tmp_path / "j").read_text()


@pytest.mark.full
def test_every_program_is_listed(tmp_path: Path):
    # In a process where signatures are not checked: torch cannot trace the checks.
    settings = ["--backend", "neuron", "--simulate", "--model", str(write_tiny_llama(tmp_path)), *SMALL, *BUCKETS]
    command = [sys.executable, "-m", "pageport", "compile", *settings]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert [row[:4] for row in rows[1:3]] == [["decode", "4", "4", "64"], ["prompt", "1", "32", "64"]]
    assert all(int(row[5]) > 100 for row in rows[1:3])
    assert "2 programs in" in done.stdout
