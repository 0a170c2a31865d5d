"""How much memory this process may use: the machine's, or less where a control group says so."""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pageport.backend import Memory


class _Limit(NamedTuple):
    """A control group's limit and what its members use of it, in bytes, without page cache that can be dropped."""

    limit: int
    used: int


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
    memberships = root / "proc/self/cgroup"
    if not memberships.exists():
        return
    for line in memberships.read_text().splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0":
            yield from _climb(root / "sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            yield from _climb(
                root / "sys/fs/cgroup/memory",
                path,
                "memory.limit_in_bytes",
                "memory.usage_in_bytes",
                "total_inactive_file",
            )


def _climb(mount: Path, path: str, limit_file: str, usage_file: str, reclaimable: str) -> Iterator[_Limit]:
    """Yield the limits of a group and of all above it; inside a container some of the way may be out of sight."""
    group = mount / path.lstrip("/")
    for folder in (group, *group.parents):
        if not folder.is_relative_to(mount):
            return
        if not (folder / limit_file).exists():
            continue
        limit = (folder / limit_file).read_text().strip()
        if limit == "max":
            continue
        used = int((folder / usage_file).read_text())
        cache = _fields(folder / "memory.stat", scale=1).get(reclaimable, 0)
        yield _Limit(int(limit), max(0, used - cache))


def _fields(path: Path, scale: int) -> dict[str, int]:
    """Parse ``name[:] number …`` lines."""
    if not path.exists():
        return {}
    rows = (line.replace(":", " ").split() for line in path.read_text().splitlines())
    return {row[0]: int(row[1]) * scale for row in rows if len(row) > 1 and row[1].isdecimal()}
