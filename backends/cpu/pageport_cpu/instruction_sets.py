"""Instruction sets the kernels are compiled for, and which of them this machine has."""

import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class InstructionSet:
    """One build of the kernels: explicit compiler flags, and what a processor must have to run it."""

    name: str
    machines: tuple[str, ...]  # as `platform.machine()` names them; empty: any
    compiler_flags: tuple[str, ...] = ()
    processor_flags: frozenset[str] = frozenset()  # as /proc/cpuinfo names them


# Best first.
INSTRUCTION_SETS = (
    InstructionSet(
        name="avx512",
        machines=("x86_64",),
        compiler_flags=(
            *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mavx512bf16"),
            *("-mavx2", "-mfma", "-mf16c"),
        ),
        processor_flags=frozenset(
            {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16", "avx2", "fma", "f16c"}
        ),
    ),
    InstructionSet(
        name="avx2",
        machines=("x86_64",),
        compiler_flags=("-mavx2", "-mfma", "-mf16c"),
        processor_flags=frozenset({"avx2", "fma", "f16c"}),
    ),
    InstructionSet(name="neon", machines=("aarch64", "arm64")),
    InstructionSet(name="portable", machines=()),
)


def available_sets(
    machine: str | None = None, processor_flags: frozenset[str] | None = None
) -> tuple[InstructionSet, ...]:
    """Return the sets this machine runs, best first."""
    machine = machine or platform.machine()
    flags = read_processor_flags(Path("/proc/cpuinfo")) if processor_flags is None else processor_flags
    return tuple(
        candidate
        for candidate in INSTRUCTION_SETS
        if (not candidate.machines or machine in candidate.machines) and candidate.processor_flags <= flags
    )


def compilable_sets(machine: str | None = None) -> tuple[InstructionSet, ...]:
    """Return the sets that a compiler on this machine can build, whatever its processor has."""
    machine = machine or platform.machine()
    return tuple(candidate for candidate in INSTRUCTION_SETS if not candidate.machines or machine in candidate.machines)


def read_processor_flags(cpuinfo: Path) -> frozenset[str]:
    """Return the flags of the first processor; none where the file or the line is missing."""
    if not cpuinfo.exists():
        return frozenset()
    with cpuinfo.open() as lines:
        for line in lines:
            name, _, values = line.partition(":")
            if name.strip() in ("flags", "Features"):
                return frozenset(values.split())
    return frozenset()
