"""The distribution that docs/extending.md shows works as it stands there."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "extending.md").read_text()
FILES = dict(re.findall(r"^`(pageport_extras/\w+\.py)`\n\n```python\n(.*?)```", TEXT, re.DOTALL | re.MULTILINE))
TRIALS = re.findall(r"<!-- try -->\n```python\n(.*?)```", TEXT, re.DOTALL)
(PROJECT,) = [tomllib.loads(block) for block in re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)]
GROUPS = PROJECT["project"]["entry-points"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the distribution as ``pip install --target`` would, and return where."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "pageport_extras").mkdir()
    for name, source in FILES.items():
        (folder / name).write_text(source)
    name, version = PROJECT["project"]["name"], PROJECT["project"]["version"]
    metadata = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in GROUPS.items()]
    (metadata / "entry_points.txt").write_text("\n".join(lines))
    return folder


def python(folder: Path, *arguments: str) -> list[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_every_example_is_installed_and_usable(installed: Path) -> None:
    rows = [line.split() for line in python(installed, "-m", "pageport", "extensions")[1:]]
    assert len(rows) == len(GROUPS) == len(FILES) == 4
    assert all(row[2:] == [name, "yes", "pageport-extras", "0.1.0"] for row, name in zip(
        rows, ["tagged", "no_echo", "LayeredForCausalLM", "json_lines"], strict=True
    ))  # fmt: skip


def test_every_example_does_what_the_page_says(installed: Path) -> None:
    printed = python(installed, "-c", "\n".join(TRIALS))
    assert printed == [
        "[Content(text='Let me see.')]",
        "[CallBegins(index=0, name='weather'), CallArguments(index=0, text='{\"city\": \"Oslo\"}'), CallEnds(index=0)]",
        "20 tokens, 20 of them different",
        printed[3],
        '{"name": "answers_total", "value": 3.0}',
    ]
    assert printed[3].count(",") == 4
