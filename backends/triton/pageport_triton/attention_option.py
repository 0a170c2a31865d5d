"""The backend option ``attention``: whose kernels attend, and whether they are installed. No torch here."""

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from pageport.errors import BackendUnavailable, ConfigurationError

OPTION = "attention"
TRITON = "triton"
# A library that is faster on some device has to be measured there before it is chosen for anybody.
AUTO = "auto"


class Library(NamedTuple):
    """A package of attention kernels, from the first version whose calls were compared with those made here."""

    name: str  # the option's value
    distribution: str
    module: str
    floor: tuple[int, ...]
    functions: tuple[str, ...]


def read_attention(options: Mapping[str, str], backend: str, names: Sequence[str]) -> str:
    """Return ``triton`` or one of ``names``; ``auto``, the default, is ``triton``.

    Raises:
        ConfigurationError: the value is none of these.
    """
    wanted = options.get(OPTION, AUTO)
    if wanted not in (AUTO, TRITON, *names):
        raise ConfigurationError(
            f"{OPTION}={wanted} is no option of the {backend} backend; use {', '.join((AUTO, TRITON, *names))}."
        )
    return TRITON if wanted == AUTO else wanted


def import_library(library: Library) -> Any:
    """Import a library.

    Raises:
        BackendUnavailable: it is not installed, too old, broken, or lacks what is called.
    """
    what, floor = f"{OPTION}={library.name} needs {library.distribution}", ".".join(map(str, library.floor))
    advice = f'Run: pip install "{library.distribution}>={floor}", or use {OPTION}={TRITON}.'
    try:
        found = version(library.distribution)
    except PackageNotFoundError as error:
        raise BackendUnavailable(f"{what}, which is not installed. {advice}") from error
    if _numbers(found) < library.floor:
        raise BackendUnavailable(f"{what} {floor} or later, and {found} is installed. {advice}")
    try:
        module = import_module(library.module)
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise BackendUnavailable(
            f"{what}, and {library.distribution} {found} cannot be imported: {error}. {advice}"
        ) from error
    missing = [name for name in library.functions if not hasattr(module, name)]
    if missing:
        raise BackendUnavailable(f"{what} with {missing[0]}, which {found} does not have. {advice}")
    return module


def _numbers(text: str) -> tuple[int, ...]:
    """Return the leading numbers of a version."""
    leading = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, leading[0].split("."))) if leading else ()
