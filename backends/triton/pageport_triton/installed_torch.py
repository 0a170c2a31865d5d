"""``InstalledTorch``: what the torch found here was built for, read without importing it."""

import re
from collections.abc import Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Literal, NamedTuple

# What a build of torch computes on besides the processor; as torch's own version file names them.
Build = Literal["cuda", "hip", "xpu"]


class InstalledTorch(NamedTuple):
    """A version, and the version of the runtime it was built for: at most one is not None."""

    version: str
    cuda: str | None = None
    hip: str | None = None
    xpu: str | None = None


def find_torch(path: Sequence[str] | None = None) -> InstalledTorch | None:
    """Return the torch that would be imported, or None.

    Args:
        path: folders to look in; default: where imports look.
    """
    location = _package_folder("torch", path)
    if location is None:
        return None
    return read_version_file(location / "version.py")


def has_triton(path: Sequence[str] | None = None) -> bool:
    """Tell whether a triton, of whatever distribution, would be imported."""
    return _package_folder("triton", path) is not None


def read_version_file(version_file: Path) -> InstalledTorch:
    """Read torch's ``version.py``; what it does not say is None."""
    source = version_file.read_text() if version_file.exists() else ""
    return InstalledTorch(
        version=_assigned(source, "__version__") or "of an unknown version",
        cuda=_assigned(source, "cuda"),
        hip=_assigned(source, "hip"),
        xpu=_assigned(source, "xpu"),
    )


def _package_folder(name: str, path: Sequence[str] | None) -> Path | None:
    spec = PathFinder.find_spec(name, path)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def _assigned(source: str, name: str) -> str | None:
    """Return the text in quotes that a line ``name = 'text'``, with or without an annotation, assigns."""
    found = re.search(rf"^{name}\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", source, re.MULTILINE)
    return found[1] if found else None
