"""Compile the kernels: one shared library an instruction set, named by the hash of what went into it.

Needs nothing but a C++17 compiler; imported by the wheel's build hook too, hence only the standard library and this
package's own modules.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pageport_cpu.instruction_sets import InstructionSet

KERNELS = Path(__file__).parent / "kernels"
# Contraction and fast math would make results depend on the compiler; kernels call `fma` where they mean it.
# GCC 12 takes its own AVX-512 intrinsics for uses of uninitialised values; Clang does not know all names of warnings.
FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-pthread", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno"),
    *("-Wall", "-Wextra", "-Wno-unknown-warning-option", "-Wno-uninitialized", "-Wno-maybe-uninitialized"),
)
# Files that nothing needs any more are kept this long: another process may be about to link or load them.
KEEP_STALE_S = 24 * 3600


class CompilationFailed(Exception):
    """The compiler refused; the message holds what it said."""


@dataclass(frozen=True)
class Kernels:
    """The sources of one library."""

    folder: Path = KERNELS
    extra_flags: tuple[str, ...] = ()

    @property
    def sources(self) -> list[Path]:
        return sorted(self.folder.glob("*.cpp"))

    def library_name(self, target: InstructionSet) -> str:
        """Return the file name of the library; any change of a source, header or flag changes it."""
        headers = self._headers_hash(target)
        return f"pageport_cpu-{target.name}-{_hash(headers, *map(_content, self.sources))}.so"

    def object_name(self, source: Path, target: InstructionSet) -> str:
        return f"{source.stem}-{target.name}-{_hash(self._headers_hash(target), _content(source))}.o"

    def flags(self, target: InstructionSet) -> list[str]:
        return [*FLAGS, *target.compiler_flags, *self.extra_flags]

    def _headers_hash(self, target: InstructionSet) -> bytes:
        headers = sorted(self.folder.glob("*.h"))
        return _hash(" ".join(self.flags(target)).encode(), *map(_content, headers)).encode()


def find_compiler() -> str | None:
    """Return the C++ compiler: ``$CXX``, or the first of the usual names that is installed.

    ``CXX=none`` stands for a machine without one.
    """
    asked = os.environ.get("CXX")
    names = [asked] if asked else ["c++", "g++", "clang++"]
    return next((name for name in names if shutil.which(shlex.split(name)[0])), None)


def understands(compiler: str, target: InstructionSet, kernels: Kernels = Kernels()) -> bool:
    """Tell whether a compiler knows the flags of an instruction set; old ones do not know the latest."""
    command = [*shlex.split(compiler), *kernels.flags(target), "-x", "c++", "-E", os.devnull]
    return subprocess.run(command, capture_output=True).returncode == 0


def compile_library(
    target: InstructionSet,
    folder: Path,
    compiler: str,
    kernels: Kernels = Kernels(),
    jobs: int | None = None,
) -> Path:
    """Compile what is not compiled yet and return the library in ``folder``.

    Processes that compile at once do not disturb each other: every file appears under its name when it is whole, and
    is kept for a day after its last use.

    Args:
        jobs: compilers that run at once; default: one a processor.

    Raises:
        CompilationFailed: with the compiler's words.
        OSError: ``folder`` cannot be written.
    """
    objects = folder / "objects"
    command = [*shlex.split(compiler), *kernels.flags(target)]

    def compile_source(source: Path) -> Path:
        while not (result := objects / kernels.object_name(source, target)).exists():
            _make(result, [*command, "-c", str(source)], lambda: kernels.object_name(source, target))
        os.utime(result)
        return result

    while not (library := folder / kernels.library_name(target)).exists():
        objects.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(jobs or len(os.sched_getaffinity(0))) as pool:
            made = list(pool.map(compile_source, kernels.sources))
        _make(library, [*command, "-shared", *map(str, made)], lambda: kernels.library_name(target))
        _remove_stale([*objects.iterdir(), *folder.glob("*.so"), *folder.glob("*.part")], {library, *made})
    return library


def _make(result: Path, command: Sequence[str], current_name: Callable[[], str]) -> None:
    """Run a compiler and keep what it makes, unless a source changed meanwhile and the name promises another one."""
    handle, name = tempfile.mkstemp(dir=result.parent, prefix=result.stem, suffix=".part")
    os.close(handle)
    part = Path(name)
    try:
        try:
            run = subprocess.run([*command, "-o", str(part)], capture_output=True, text=True)
        except OSError as error:
            raise CompilationFailed(f"{command[0]} cannot be run: {error}") from error
        if run.returncode:
            raise CompilationFailed(f"{' '.join(command)}\n{run.stderr.strip()}")
        part.chmod(0o644)  # temporary files are their owner's only; others may run what one has installed
        if current_name() == result.name:
            part.rename(result)
    finally:
        part.unlink(missing_ok=True)


def _remove_stale(files: list[Path], current: set[Path]) -> None:
    oldest = time.time() - KEEP_STALE_S
    for file in files:
        try:
            if file not in current and file.stat().st_mtime < oldest:
                file.unlink()
        except FileNotFoundError:
            continue  # another process was faster


def _content(path: Path) -> bytes:
    return path.name.encode() + b"\0" + path.read_bytes()


def _hash(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()[:16]
