"""What may be imported where: layers, and nothing heavy where start-up counts."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

CORE = Path(__file__).parents[2] / "core" / "pageport"

# package -> packages of ours it may import besides itself.
LAYERS = {
    "cache": {"errors"},
    "scheduling": {"cache", "sampling", "config", "errors"},
    "sampling": {"errors", "scheduling", "backend", "plugins"},
    "text": {"errors", "models", "plugins"},
    "models": {"backend", "errors", "config", "plugins"},
    "backend": {"errors", "plugins"},
    "engine": {"backend", "cache", "config", "errors", "models", "sampling", "scheduling", "text"},
    "server": {"config", "engine", "errors", "plugins", "sampling", "text"},
    "load": {"config", "errors"},
    "batch_file": {"errors"},
}


def imports_of(package: str) -> set[str]:
    found = set()
    for path in (CORE / package).rglob("*.py"):
        found |= set(re.findall(r"^\s*(?:from|import) pageport\.(\w+)", path.read_text(), re.MULTILINE))
    return found - {package}


@pytest.mark.parametrize("package", LAYERS)
def test_layers_point_one_way(package: str) -> None:
    assert imports_of(package) <= LAYERS[package]


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("pageport", ("torch", "transformers", "numpy", "pydantic", "typer")),
        ("pageport.cli.app", ("torch", "transformers", "numpy", "fastapi", "gguf")),
        ("pageport.server.app", ("torch", "transformers")),
        ("pageport.engine.async_engine", ("torch", "transformers", "fastapi")),
        ("pageport.engine.builder", ("transformers", "fastapi", "pydantic")),
        ("pageport.scheduling.scheduler", ("torch", "transformers")),
        ("pageport.backend", ("torch",)),
    ],
)
def test_a_module_does_not_import(module: str, absent: tuple[str, ...]) -> None:
    code = f"import sys, {module}; print([m for m in {absent!r} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_no_package_is_misspelled_in_the_layers() -> None:
    packages = {p.name for p in CORE.iterdir() if p.is_dir() and not p.name.startswith("__")}
    assert packages - {"cli", "testing"} == set(LAYERS)
