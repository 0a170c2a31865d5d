"""What a person sees of the command line."""

import subprocess
import sys

import pytest

from pageport import __version__


def pageport(*arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", "pageport", *arguments], capture_output=True, text=True, check=False)


def test_version_is_one_line() -> None:
    assert pageport("--version").stdout == f"pageport {__version__}\n"


def test_help_lists_the_commands() -> None:
    shown = pageport("--help").stdout
    assert all(command in shown for command in ("serve", "generate", "chat", "backends", "models"))


@pytest.mark.parametrize(
    "flag",
    [
        "--max-model-len",
        "--max-num-seqs",
        "--max-num-batched-tokens",
        "--gpu-memory-utilization",
        "--served-model-name",
        "--enable-prefix-caching",
        "--api-key",
        "--dtype",
        "--kv-cache-dtype",
        "--quantization",
        "--swap-space",
    ],
)
def test_serve_takes_the_flags_people_know(flag: str, serve_help: str) -> None:
    assert flag in serve_help


@pytest.fixture(scope="module")
def serve_help() -> str:
    shown = subprocess.run(
        [sys.executable, "-m", "pageport", "serve", "--help"],
        capture_output=True,
        text=True,
        check=True,
        env={"COLUMNS": "200", "PATH": ""},
    )
    return shown.stdout


def test_version_imports_next_to_nothing() -> None:
    code = (
        "import sys; sys.argv = ['pageport', '--version']; import pageport.__main__ as m; m.main(); "
        "print(len(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(shown.splitlines()[1]) < 120


@pytest.mark.parametrize("arguments", [("generate", "x"), ("serve",)])
def test_a_missing_model_is_one_sentence(arguments: tuple[str, ...]) -> None:
    done = pageport(*arguments, "--model", "/no/such/model")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "/no/such/model" in done.stderr
