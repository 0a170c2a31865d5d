"""``Target``: an architecture that kernels are compiled for without having it."""

from collections.abc import Mapping
from dataclasses import dataclass

KIB = 1024


@dataclass(frozen=True, kw_only=True)
class Target:
    """One architecture; its name is the key of the tables of configurations."""

    name: str
    toolchain: str  # "cuda" or "hip", as triton spells them
    chip: int | str
    warp_size: int
    # What one block may ask for.
    shared_bytes: int


# Shared memory: CUDA C++ programming guide, compute capabilities, opt-in maximum a block; LDS of a workgroup.
TARGETS: Mapping[str, Target] = {
    target.name: target
    for target in (
        Target(name="sm80", toolchain="cuda", chip=80, warp_size=32, shared_bytes=163 * KIB),
        Target(name="sm90", toolchain="cuda", chip=90, warp_size=32, shared_bytes=227 * KIB),
        Target(name="sm100", toolchain="cuda", chip=100, warp_size=32, shared_bytes=227 * KIB),
        Target(name="gfx90a", toolchain="hip", chip="gfx90a", warp_size=64, shared_bytes=64 * KIB),
        Target(name="gfx942", toolchain="hip", chip="gfx942", warp_size=64, shared_bytes=64 * KIB),
        Target(name="gfx950", toolchain="hip", chip="gfx950", warp_size=64, shared_bytes=64 * KIB),
        Target(name="gfx1100", toolchain="hip", chip="gfx1100", warp_size=32, shared_bytes=64 * KIB),
    )
}
