"""Plugins that are installed for one test."""

import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# (distribution, module's source, entry-point group, entry point's name)
Install = Callable[[str, str, str, str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Return a function that installs a plugin module and its distribution's metadata."""
    monkeypatch.syspath_prepend(str(tmp_path))
    # Processes that the test starts find it too.
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def install(distribution: str, source: str, group: str, entry_point: str) -> None:
        module = f"plugin_of_{distribution.replace('-', '_')}"
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        folder = tmp_path / f"{distribution.replace('-', '_')}-3.1.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 3.1\n")
        (folder / "entry_points.txt").write_text(f"[{group}]\n{entry_point} = {module}\n")

    yield install
    for name in [name for name in sys.modules if name.startswith("plugin_of_")]:
        del sys.modules[name]
