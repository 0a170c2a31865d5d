"""A stranger's backend, word for word the one of docs/writing-a-backend.md, as a distribution of its own."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "writing-a-backend.md"
# A file's name alone on a line, then its content.
FILE = re.compile(r"^`([\w./-]+)`\n\n```\w+\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PLUGIN = "pageport_abacus/plugin.py"


def files() -> dict[str, str]:
    found = dict(FILE.findall(DOCUMENT.read_text()))
    assert sorted(found) == ["pageport_abacus/device.py", PLUGIN, "pyproject.toml", "tests/test_conformance.py"]
    return found | {"pageport_abacus/__init__.py": ""}


def build(folder: Path, sources: dict[str, str]) -> Path:
    """Build and install a distribution into a folder of its own, and return that."""
    for name, content in sources.items():
        path = folder / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    target = folder / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    alone = ["--no-deps", "--no-build-isolation", "--no-index", "--target", str(target)]
    subprocess.run([*pip, *alone, str(folder / "source")], check=True)
    return target


def run(command: list[str], *installed: Path) -> "subprocess.CompletedProcess[str]":
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, installed)), "COLUMNS": "200"}
    return subprocess.run([sys.executable, "-m", *command], env=environ, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("stranger"), files())


@pytest.fixture(scope="module")
def rival(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another distribution, other modules, the same backend name."""
    renamed = {
        name.replace("pageport_abacus", "rival"): content.replace("pageport_abacus", "rival").replace(
            "pageport-abacus", "rival-of-abacus"
        )
        for name, content in files().items()
    }
    return build(tmp_path_factory.mktemp("rival"), renamed)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A distribution whose plugin needs what is not there."""
    renamed = {
        name.replace("pageport_abacus", "broken"): content.replace("pageport_abacus", "broken")
        .replace("pageport-abacus", "broken-backend")
        .replace("abacus =", "broken =")
        for name, content in files().items()
    }
    renamed["broken/plugin.py"] = "import library_of_a_missing_driver\n"
    return build(tmp_path_factory.mktemp("broken"), renamed)


def conformance(levels: range, *installed: Path) -> "subprocess.CompletedProcess[str]":
    chosen = [option for level in levels for option in ("--level", str(level))]
    return run(["pageport", "conformance", "abacus", *chosen], *installed)


def test_the_example_is_about_forty_lines() -> None:
    code = [line for name in (PLUGIN, "pageport_abacus/device.py") for line in files()[name].splitlines()]
    assert len([line for line in code if line.strip() and not line.startswith(("import ", "from "))]) < 50


def test_a_strangers_backend_passes_the_quick_levels(stranger: Path) -> None:
    done = conformance(range(3), stranger)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "abacus passes" in done.stdout


@pytest.mark.full
def test_a_strangers_backend_passes_attention_ops_and_engine(stranger: Path) -> None:
    done = conformance(range(3, 6), stranger)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_strangers_test_module_runs_with_pytest(stranger: Path, tmp_path: Path) -> None:
    module = tmp_path / "test_conformance.py"
    module.write_text(files()["tests/test_conformance.py"])
    quiet = ["-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-k", "discovery or memory"]
    done = run(["pytest", *quiet, str(module)], stranger)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_the_conformance_page_shows_the_module_that_runs_here() -> None:
    page = (DOCUMENT.parent / "conformance.md").read_text()
    assert f"```python\n{files()['tests/test_conformance.py']}```" in page


def test_two_distributions_with_one_name_are_both_named(stranger: Path, rival: Path) -> None:
    done = conformance(range(1), stranger, rival)
    assert done.returncode == 1
    assert "the name abacus is claimed by pageport-abacus 0.1.0 and rival-of-abacus 0.1.0" in done.stderr


def test_a_broken_backend_is_listed_with_its_reason_and_harms_nobody(stranger: Path, broken: Path) -> None:
    listed = run(["pageport", "backends"], stranger, broken).stdout
    assert "No module named 'library_of_a_missing_driver'" in listed
    assert re.search(r"abacus +yes +1", listed)
    done = conformance(range(1), stranger, broken)
    assert done.returncode == 0, done.stdout + done.stderr
