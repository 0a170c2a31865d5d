"""The backend that docs/writing-a-backend.md builds: its files after each step, and ways to install them."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "writing-a-backend.md"
PLUGIN = ROOT / "plugins" / "example"
STEP = re.compile(r"^## Step \d+: .*?(?=^## )", re.DOTALL | re.MULTILINE)
# A file's name alone on a line, then what it holds or how it changes.
FILE = re.compile(r"^`([\w./-]+)`\n\n```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)

Files = dict[str, str]
# (module and arguments, folder of installed distributions …) -> what came of it
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def patched(content: str, difference: str) -> str:
    """Apply the hunks of a unified diff whose places are found by their lines."""
    for hunk in re.split(r"^@@\n", difference, flags=re.MULTILINE):
        lines = [line or " " for line in hunk.splitlines()]
        before = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
        assert content.count(before) == 1, f"not found, or not only once:\n{before}"
        content = content.replace(before, "".join(f"{line[1:]}\n" for line in lines if line[0] in " +"))
    return content


@pytest.fixture(scope="session")
def page() -> str:
    return PAGE.read_text()


@pytest.fixture(scope="session")
def sections(page: str) -> list[str]:
    """Return the page's steps as they stand there."""
    return STEP.findall(page)


@pytest.fixture(scope="session")
def steps(sections: list[str]) -> list[Files]:
    """Return the distribution's files after each step."""
    files = {"pageport_example/__init__.py": ""}
    after = []
    for section in sections:
        for name, language, content in FILE.findall(section):
            files[name] = patched(files[name], content) if language == "diff" else content
        after.append(dict(files))
    return after


@pytest.fixture(scope="session")
def plugin() -> Files:
    """Return the files of plugins/example that the page is to build."""
    paths = [PLUGIN / "pyproject.toml", *(PLUGIN / "pageport_example").glob("*.py"), *(PLUGIN / "tests").glob("*.py")]
    return {str(path.relative_to(PLUGIN)): path.read_text() for path in paths}


@pytest.fixture(scope="session")
def unpack() -> Callable[[Path, Files, str, str], Path]:
    """Return a function that puts a distribution's modules and metadata where an installer would."""

    def unpack(folder: Path, files: Files, distribution: str, entry_point: str) -> Path:
        for name, content in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        metadata = folder / f"{distribution.replace('-', '_')}-0.1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.1.0\n")
        (metadata / "entry_points.txt").write_text(f"[pageport.backends]\n{entry_point}\n")
        return folder

    return unpack


@pytest.fixture(scope="session")
def run() -> Run:
    def run(command: list[str], *installed: Path) -> "subprocess.CompletedProcess[str]":
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, installed)), "COLUMNS": "200"}
        return subprocess.run(
            [sys.executable, "-m", *command], env=environ, capture_output=True, text=True, check=False
        )

    return run


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel of plugins/example, install it into a folder of its own, and return that."""
    folder = tmp_path_factory.mktemp("example")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    alone = ["--no-deps", "--no-index"]
    subprocess.run([*pip, "wheel", *alone, "--no-build-isolation", "-w", str(folder), str(PLUGIN)], check=True)
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", *alone, "--target", str(folder / "installed"), str(wheel)], check=True)
    return folder / "installed"
