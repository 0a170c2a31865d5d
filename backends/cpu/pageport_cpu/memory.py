"""How much memory this process may use: the machine's, or less where a control group says so."""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pageport.backend import Memory
from pageport_cpu.control_groups import control_groups


class _Limit(NamedTuple):
    """A control group's limit and what its members use of it, in bytes, without page cache that can be dropped."""

    limit: int
    used: int


class _Files(NamedTuple):
    """What a version of control groups calls its files, and the page cache that can be dropped in memory.stat."""

    limit: str
    usage: str
    reclaimable: str


_FILES = {
    1: _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: _Files("memory.max", "memory.current", "inactive_file"),
}


def read_memory(root: Path = Path("/")) -> Memory:
    """Read ``/proc`` and the control groups (versions 1 and 2) under ``root``.

    A group's limit also binds its subgroups, so the tightest on the way to the top counts.
    """
    machine = _fields(root / "proc/meminfo", scale=1024)
    total, free = machine["MemTotal"], machine["MemAvailable"]
    for limit in _limits(root):
        total = min(total, limit.limit)
        free = min(free, max(0, limit.limit - limit.used))
    resident_pages = int((root / "proc/self/statm").read_text().split()[1])
    return Memory(total=total, free=free, reserved_by_this_process=resident_pages * os.sysconf("SC_PAGE_SIZE"))


def return_freed_memory() -> None:
    """Hand what this process has freed back to the system: glibc keeps hundreds of megabytes of freed weights."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # other C libraries have none
    if trim is not None:
        trim(0)


def _limits(root: Path) -> Iterator[_Limit]:
    for folder, version in control_groups(root, "memory"):
        names = _FILES[version]
        if not (folder / names.limit).exists():
            continue
        limit = (folder / names.limit).read_text().strip()
        if limit == "max":
            continue
        used = int((folder / names.usage).read_text())
        cache = _fields(folder / "memory.stat", scale=1).get(names.reclaimable, 0)
        yield _Limit(int(limit), max(0, used - cache))


def _fields(path: Path, scale: int) -> dict[str, int]:
    """Parse ``name[:] number …`` lines."""
    if not path.exists():
        return {}
    rows = (line.replace(":", " ").split() for line in path.read_text().splitlines())
    return {row[0]: int(row[1]) * scale for row in rows if len(row) > 1 and row[1].isdecimal()}
