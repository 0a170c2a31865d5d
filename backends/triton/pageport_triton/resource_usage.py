"""``ResourceUsage``: what a compiled kernel takes of the machine, read from what the compiler made."""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pageport_triton.targets import Target

_PTX_MATRIX = re.compile(r"^\s*(?:@%\w+ )?(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)\b", re.MULTILINE)
_AMD_MATRIX = re.compile(r"^\s*v_(?:mfma|smfmac|wmma)_", re.MULTILINE)


@dataclass(frozen=True)
class ResourceUsage:
    """Of one thread: registers, spills; of one block: shared memory; of the code: matrix instructions.

    ``spill_bytes`` is memory that a thread takes for what does not fit its registers. ``occupancy``: waves a SIMD can
    hold, where the compiler says so.
    """

    registers: int
    spill_bytes: int
    shared_bytes: int
    matrix_instructions: int
    occupancy: int | None = None


def resource_usage(compiled: Any, target: Target) -> ResourceUsage:
    """Read the usage of what ``triton.compile`` returned."""
    if target.toolchain == "cuda":
        return _of_cubin(compiled.asm["cubin"], compiled.asm["ptx"], compiled.metadata.shared)
    return _of_amdgcn(compiled.asm["amdgcn"], compiled.metadata.shared)


def _of_cubin(cubin: bytes, ptx: str, shared_bytes: int) -> ResourceUsage:
    import triton.backends.nvidia

    dumper = Path(triton.backends.nvidia.__path__[0]) / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(dumper), "-res-usage", file.name]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    figures = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", report)}
    return ResourceUsage(
        registers=figures["REG"],
        spill_bytes=figures["STACK"] + figures["LOCAL"],
        shared_bytes=shared_bytes,
        matrix_instructions=len(_PTX_MATRIX.findall(ptx)),
    )


def _of_amdgcn(assembly: str, shared_bytes: int) -> ResourceUsage:
    def figure(name: str) -> int:
        found = re.search(rf"\.{name}:\s+(\d+)", assembly)
        return 0 if found is None else int(found[1])

    occupancy = re.search(r"; Occupancy: (\d+)", assembly)
    # Spilt scalars go to lanes of vector registers first, and are bytes only in scratch memory.
    spilt_bytes = max(4 * figure("vgpr_spill_count"), figure("private_segment_fixed_size"))
    return ResourceUsage(
        registers=figure("vgpr_count"),
        spill_bytes=spilt_bytes,
        shared_bytes=shared_bytes,
        matrix_instructions=len(_AMD_MATRIX.findall(assembly)),
        occupancy=None if occupancy is None else int(occupancy[1]),
    )
