"""Which control groups bind this process, versions 1 and 2."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class ControlGroup(NamedTuple):
    """One group's folder, and the version of control groups, whose files have names of their own."""

    folder: Path
    version: int


def control_groups(root: Path, controller: str) -> Iterator[ControlGroup]:
    """Yield this process's groups of a controller ("cpu", "memory"), each followed by all above it.

    What a group grants binds its subgroups too. Inside a container some of the way may be out of sight: such folders
    may be missing, or lack the controller's files.

    Args:
        root: where ``/proc`` and ``/sys`` are read.
    """
    memberships = root / "proc/self/cgroup"
    if not memberships.exists():
        return
    for line in memberships.read_text().splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if hierarchy == "0":
            mount, version = root / "sys/fs/cgroup", 2
        elif controller in controllers.split(","):
            mount, version = root / "sys/fs/cgroup" / controller, 1
        else:
            continue
        group = mount / path.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(mount):
                break
            yield ControlGroup(folder, version)
