"""How many threads can compute at once here: physical cores, fewer where affinity or a control group says so."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from pageport_cpu.control_groups import ControlGroup, control_groups


def count_cores(root: Path = Path("/"), allowed: Iterable[int] | None = None) -> int:
    """Return the physical cores this process may use, at least 1.

    Hardware threads of one core count once: they share its arithmetic units. A control group's quota of 2.5
    processors counts as 2: a third thread would be stopped for half of the time, and the others would wait for it.

    Args:
        root: where ``/proc`` and ``/sys`` are read.
        allowed: processors by number; default: this process's affinity.
    """
    processors = os.sched_getaffinity(0) if allowed is None else allowed
    cores = {_core(root, processor) for processor in processors}
    return max(1, min([len(cores), *map(int, _quotas(root))]))


def _core(root: Path, processor: int) -> str:
    """Return what the hardware threads of one core have in common; where nothing is known each is a core."""
    topology = root / f"sys/devices/system/cpu/cpu{processor}/topology"
    for name in ("core_cpus_list", "thread_siblings_list"):  # the second: its name before Linux 5.3
        if (topology / name).exists():
            return (topology / name).read_text().strip()
    return str(processor)


def _quotas(root: Path) -> Iterator[float]:
    """Yield how many processors this process's control groups grant; the tightest one counts."""
    for group in control_groups(root, "cpu"):
        quota = _quota(group)
        if quota is not None:
            yield quota


def _quota(group: ControlGroup) -> float | None:
    """Return time granted over the period it is granted for; none where a group has no limit or is out of sight."""
    names = ("cpu.max",) if group.version == 2 else ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    if not all((group.folder / name).exists() for name in names):
        return None
    granted, period = " ".join((group.folder / name).read_text() for name in names).split()
    return None if granted in ("max", "-1") else int(granted) / int(period)
