"""The wheel holds every source root; backends have their entry points and extras."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCE_ROOTS = sorted(
    p.relative_to(ROOT).as_posix() for p in [ROOT / "core/pageport", *ROOT.glob("backends/*/pageport_*")]
)


def test_every_source_root_is_packaged() -> None:
    assert sorted(PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == SOURCE_ROOTS


def test_every_plugin_has_an_entry_point_and_an_extra() -> None:
    plugins = {p.parent.parent.name: f"{p.parent.name}.plugin" for p in ROOT.glob("backends/*/pageport_*/plugin.py")}
    assert PROJECT["project"]["entry-points"]["pageport.backends"] == plugins
    assert plugins.keys() <= PROJECT["project"]["optional-dependencies"].keys()


def test_dependencies_are_ranges() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    # Without the marker, which says where a package is needed.
    named = [
        d.split(";")[0] for d in [*PROJECT["project"]["dependencies"], *(d for deps in extras.values() for d in deps)]
    ]
    assert [d for d in (d.split(";")[0] for d in named) if "==" in d or ">=" not in d] == []


@pytest.mark.full
def test_a_built_wheel_holds_every_module(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True)
    names = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    for root in SOURCE_ROOTS:
        base = ROOT / root
        modules = {p.relative_to(base.parent).as_posix() for p in base.rglob("*.py")}
        assert modules <= names
        assert f"{base.name}/py.typed" in names
