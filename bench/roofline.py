"""The peaks of this machine, by native loops: float32 and int8 multiply-adds in registers, and reads of 512 MiB.

    python bench/roofline.py [--threads 1,2] [--seconds 0.2] [--tries 5] [--json]

Each figure is the best of several loops of ``native/roofline.cpp``, compiled here for what this CPU has.
"""

import argparse
import ctypes
import hashlib
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

SOURCE = Path(__file__).parent / "native" / "roofline.cpp"
CACHE = Path(os.environ.get("PAGEPORT_BENCH_CACHE", "~/.cache/pageport-bench")).expanduser()
BASE_FLAGS = ("-O3", "-std=c++17", "-Wall", "-Wextra", "-fPIC", "-shared", "-pthread")
# What /proc/cpuinfo calls a feature, and the compiler's flag for it.
X86_FLAGS = {
    "avx2": "-mavx2",
    "fma": "-mfma",
    "avx_vnni": "-mavxvnni",
    "avx512f": "-mavx512f",
    "avx512bw": "-mavx512bw",
    "avx512vl": "-mavx512vl",
    "avx512_vnni": "-mavx512vnni",
}
ARM_FLAGS = {"asimddp": "-march=armv8.2-a+dotprod"}

Kind = Literal["float32", "int8", "read"]
KINDS: tuple[Kind, ...] = ("float32", "int8", "read")
UNITS: dict[Kind, str] = {"float32": "GFLOP/s", "int8": "GOP/s", "read": "GB/s"}


class NoCompiler(Exception):
    """There is no C++ compiler, or it failed."""


@dataclass(frozen=True)
class Peak:
    """The best that any loop of one kind reached, in thousand millions a second."""

    kind: Kind
    threads: int
    value: float
    loop: str

    def __str__(self) -> str:
        return f"{self.kind}, {self.threads} threads: {self.value:.1f} {UNITS[self.kind]} ({self.loop})"


class Loops:
    """The compiled loops."""

    def __init__(self, library: Path) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.roofline_loop_name.restype = ctypes.c_char_p
        self._library.roofline_measure.restype = ctypes.c_double
        self._library.roofline_measure.argtypes = [ctypes.c_int] * 3 + [ctypes.c_int64]

    def names(self, kind: Kind) -> list[str]:
        index = KINDS.index(kind)
        count = self._library.roofline_num_loops(index)
        return [self._library.roofline_loop_name(index, i).decode() for i in range(count)]

    def measure(self, kind: Kind, loop: int, threads: int, rounds: int) -> float:
        """Run one loop; return its operations or bytes a second."""
        return float(self._library.roofline_measure(KINDS.index(kind), loop, threads, rounds))

    def release(self) -> None:
        """Give the memory that reads were measured on back."""
        self._library.roofline_release()

    def peak(self, kind: Kind, threads: int, *, seconds: float, tries: int) -> Peak:
        """Run every loop of a kind ``tries`` times, each about ``seconds`` long, and return the best."""
        # A round is 8 … 16 instructions of a register loop, about 4 ns, or one pass over the buffer.
        rounds = 1 if kind == "read" else max(1000, int(seconds / 4e-9))
        found = [
            (max(self.measure(kind, index, threads, rounds) for _ in range(tries)), name)
            for index, name in enumerate(self.names(kind))
        ]
        self.release()
        value, name = max(found)
        return Peak(kind, threads, value / 1e9, name)


def cpu_model(text: str | None = None) -> str:
    """Return the CPU's name, from ``/proc/cpuinfo``."""
    return _cpu_field(text, "model name") or platform.processor() or platform.machine()


def cpu_features(text: str | None = None) -> frozenset[str]:
    """Return what ``/proc/cpuinfo`` says that the CPU can do."""
    return frozenset((_cpu_field(text, "flags") or _cpu_field(text, "Features") or "").split())


def compiler_flags(features: frozenset[str]) -> list[str]:
    """Return the instruction-set flags for a CPU; none of an unknown one, whose loops are portable."""
    flags = [flag for feature, flag in X86_FLAGS.items() if feature in features]
    return flags or [flag for feature, flag in ARM_FLAGS.items() if feature in features]


def compile_loops(flags: list[str], folder: Path = CACHE) -> Path:
    """Compile the loops unless these flags and this source were compiled before; return the library.

    Raises:
        NoCompiler: there is none, or it failed.
    """
    compiler = shutil.which(os.environ.get("CXX", "g++"))
    if compiler is None:
        raise NoCompiler("The roofline is made of native loops: install g++, or set CXX to a C++17 compiler.")
    command = [compiler, *BASE_FLAGS, *flags]
    digest = hashlib.sha256(SOURCE.read_bytes() + " ".join(command).encode()).hexdigest()[:16]
    library = folder / f"roofline-{digest}.so"
    if not library.exists():
        folder.mkdir(parents=True, exist_ok=True)
        partial = library.with_suffix(f".{os.getpid()}.partial")
        done = subprocess.run([*command, str(SOURCE), "-o", str(partial)], capture_output=True, text=True)
        if done.returncode:
            raise NoCompiler(f"{' '.join(command)} failed: {done.stderr[-600:]}")
        partial.rename(library)
    return library


def measure_peaks(
    thread_counts: list[int], *, kinds: Sequence[Kind] = KINDS, seconds: float = 0.2, tries: int = 5
) -> list[Peak]:
    """Measure some kinds at every number of threads."""
    loops = Loops(compile_loops(compiler_flags(cpu_features())))
    return [loops.peak(kind, threads, seconds=seconds, tries=tries) for kind in kinds for threads in thread_counts]


def default_thread_counts() -> list[int]:
    """One thread, and one a core that this process may use."""
    return sorted({1, len(os.sched_getaffinity(0))})


def _cpu_field(text: str | None, name: str) -> str | None:
    lines = (text if text is not None else Path("/proc/cpuinfo").read_text()).splitlines()
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for key, _, value in pairs if key.strip() == name), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", help="comma-separated; default: 1 and all cores")
    parser.add_argument("--seconds", type=float, default=0.2, help="of one try of a register loop")
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    counts = [int(n) for n in arguments.threads.split(",")] if arguments.threads else default_thread_counts()
    peaks = measure_peaks(counts, seconds=arguments.seconds, tries=arguments.tries)
    if arguments.json:
        print(json.dumps({"cpu": cpu_model(), "peaks": [asdict(peak) for peak in peaks]}))
        return
    print(cpu_model(), " ".join(compiler_flags(cpu_features())))
    for peak in peaks:
        print(peak)


if __name__ == "__main__":
    main()
