"""Where compiled kernels lie, and which of them this machine will use. Imports no torch: probing asks here.

``python -m pageport_cpu.kernel_store`` compiles what is missing and says what will serve.
"""

import os
from pathlib import Path
from typing import NamedTuple

from pageport_cpu.compiler import CompilationFailed, Kernels, compile_library, find_compiler, understands
from pageport_cpu.instruction_sets import InstructionSet, available_sets

# Where a wheel brings its libraries and a checkout keeps those it compiles.
BUILT = Path(__file__).parent / "built"
HOW_TO_GET_A_COMPILER = (
    "Install a C++ compiler (Debian and Ubuntu: apt install g++; Fedora: dnf install gcc-c++) or set CXX to yours, "
    "or install a wheel that brings the kernels."
)
WITHOUT_KERNELS = "Until then torch's own operations are used."


class LibraryUnavailable(Exception):
    """There are no compiled kernels; the message says why and what to do."""


class BuiltLibrary(NamedTuple):
    """A compiled library and what it was compiled for."""

    path: Path
    target: InstructionSet


def cache_folder() -> Path:
    """Return where libraries go when the package's own folder cannot be written.

    Raises:
        RuntimeError: neither ``$PAGEPORT_CACHE`` nor a home is known.
    """
    root = os.environ.get("PAGEPORT_CACHE") or Path.home() / ".cache" / "pageport"
    return Path(root) / "kernels"


def provide_library(
    kernels: Kernels = Kernels(),  # noqa: B008 - frozen
    built: Path = BUILT,
    instruction_set: str | None = None,
) -> BuiltLibrary:
    """Return the best library this machine can run, compiled now if it is missing or older than its sources.

    Args:
        instruction_set: take this one, which this machine has.

    Raises:
        LibraryUnavailable: nothing is built and nothing can be.
    """
    compiler = find_compiler()
    for target in available_sets():
        if instruction_set not in (None, target.name):
            continue
        found = _find(target, kernels, built)
        if found is not None:
            return BuiltLibrary(found, target)
        if compiler is not None and understands(compiler, target, kernels):
            return BuiltLibrary(_compile(target, compiler, kernels, built), target)
    raise LibraryUnavailable(_why_not(compiler))


def describe_kernels(kernels: Kernels = Kernels(), built: Path = BUILT) -> str:  # noqa: B008 - frozen
    """Say in one line which kernels will serve, from what lies there: nothing is compiled or loaded."""
    compiler = find_compiler()
    missing: list[str] = []
    for target in available_sets():
        if _find(target, kernels, built) is not None:
            without = f", without {' and '.join(missing)}: {_why_not(compiler)}" if missing else ""
            return f"{target.name} (compiled){without}"
        if compiler is not None:
            return f"{target.name} (compiled on first use, by {compiler})"
        missing.append(target.name)
    return f"none: {_why_not(compiler)} {WITHOUT_KERNELS}"


def _find(target: InstructionSet, kernels: Kernels, built: Path) -> Path | None:
    name = kernels.library_name(target)
    return next((folder / name for folder in _folders(built) if (folder / name).exists()), None)


def _compile(target: InstructionSet, compiler: str, kernels: Kernels, built: Path) -> Path:
    problems = []
    for folder in _folders(built):
        try:
            return compile_library(target, folder, compiler, kernels)
        except OSError as error:
            problems.append(str(error))
        except CompilationFailed as error:
            raise LibraryUnavailable(f"the kernels do not compile: {error}") from error
    raise LibraryUnavailable(
        f"the compiled kernels cannot be stored: {'; '.join(problems)}. Set PAGEPORT_CACHE to a folder that can be "
        "written."
    )


def _folders(built: Path) -> list[Path]:
    try:
        return [built, cache_folder()]
    except RuntimeError:
        return [built]


def _why_not(compiler: str | None) -> str:
    asked = os.environ.get("CXX")
    if compiler is not None:
        return f"{compiler} compiles no C++17. {HOW_TO_GET_A_COMPILER}"
    reason = f"CXX is {asked!r}, which is not there" if asked else "there is no C++ compiler"
    return f"{reason}. {HOW_TO_GET_A_COMPILER}"


def main(kernels: Kernels = Kernels(), built: Path = BUILT) -> None:  # noqa: B008 - frozen
    """Compile what is missing, and print what will serve."""
    try:
        provide_library(kernels, built)
        print(f"kernels: {describe_kernels(kernels, built)}")
    except LibraryUnavailable as unavailable:
        print(f"kernels: none: {unavailable} {WITHOUT_KERNELS}")


if __name__ == "__main__":
    main()
