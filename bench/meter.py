"""``Meter``: what a run cost and what else the machine did meanwhile; and the one line that tells it."""

import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

PROC = Path("/proc")
RESULT_PREFIX = "RESULT "
# A run that lost more cores than this to others is disturbed: it is repeated.
DISTURBED_CORES = 0.1


@dataclass(frozen=True)
class MachineTime:
    """Core-seconds since boot: of everything that ran here, and of what the host gave to other machines."""

    busy_s: float
    stolen_s: float


@dataclass(frozen=True)
class Measurement:
    """One metered stretch of time."""

    wall_s: float
    own_cores: float
    other_cores: float
    steal_cores: float
    peak_rss_mb: float

    @property
    def is_disturbed(self) -> bool:
        return self.other_cores + self.steal_cores > DISTURBED_CORES

    def fields(self) -> dict[str, float]:
        return {
            "wall_s": round(self.wall_s, 3),
            "own_cores": round(self.own_cores, 2),
            "other_cores": round(self.other_cores, 2),
            "steal_cores": round(self.steal_cores, 2),
            "peak_rss_mb": round(self.peak_rss_mb),
        }


@dataclass
class Meter:
    """A context manager around a run; ``measured`` is there when it ends.

    Own is this process, its descendants, and those of ``roots`` (a server that was started elsewhere).
    """

    roots: Sequence[int] = ()
    measured: Measurement = field(init=False)

    def __enter__(self) -> "Meter":
        processes = self._processes()
        self._machine, self._own = machine_time(), cpu_seconds(processes)
        self._start = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        wall_s = time.perf_counter() - self._start
        processes = self._processes()
        self.measured = measure(
            wall_s,
            own_s=cpu_seconds(processes) - self._own,
            before=self._machine,
            after=machine_time(),
            peak_rss_mb=memory_mb(processes, "VmHWM"),
        )

    def _processes(self) -> list[int]:
        return sorted({pid for root in (os.getpid(), *self.roots) for pid in all_descendants(root)})


def measure(wall_s: float, *, own_s: float, before: MachineTime, after: MachineTime, peak_rss_mb: float) -> Measurement:
    """Turn core-seconds into cores; what is neither ours nor stolen is the others'."""
    others_s = max(0.0, after.busy_s - before.busy_s - own_s)
    return Measurement(
        wall_s=wall_s,
        own_cores=own_s / wall_s,
        other_cores=others_s / wall_s,
        steal_cores=(after.stolen_s - before.stolen_s) / wall_s,
        peak_rss_mb=peak_rss_mb,
    )


def machine_time(line: str | None = None) -> MachineTime:
    """Read the first line of ``/proc/stat``: user nice system idle iowait irq softirq steal."""
    text = line if line is not None else (PROC / "stat").read_text().split("\n", 1)[0]
    ticks = [int(field) for field in text.split()[1:9]]
    idle, stolen = ticks[3] + ticks[4], ticks[7]
    per_second = os.sysconf("SC_CLK_TCK")
    return MachineTime(busy_s=(sum(ticks) - idle - stolen) / per_second, stolen_s=stolen / per_second)


def descendants(root: int, parents: dict[int, int]) -> set[int]:
    """Return ``root`` and every process below it, given each process's parent."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    found, pending = {root}, [root]
    while pending:
        for child in children.get(pending.pop(), []):
            if child not in found:
                found.add(child)
                pending.append(child)
    return found


def all_descendants(root: int) -> set[int]:
    """Return ``root`` and every process below it now."""
    return descendants(root, _parents())


def cpu_seconds(processes: Iterable[int]) -> float:
    """Return the user and system time of processes that still run, and of those that they waited for."""
    ticks = sum(int(field) for pid in processes for field in _stat_fields(pid)[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_mb(processes: Iterable[int], key: str) -> float:
    """Add up one line of ``/proc/PID/status`` (``VmHWM``: peak resident, ``VmRSS``: resident) in MiB."""
    total_kb = 0
    for pid in processes:
        try:
            lines = (PROC / str(pid) / "status").read_text().splitlines()
        except OSError:
            continue
        total_kb += sum(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))
    return total_kb / 1024


def emit(engine: str, workload: str, run: int, **fields: Any) -> None:
    """Print one result as a line that ``compare.py`` reads."""
    print(RESULT_PREFIX + json.dumps({"engine": engine, "workload": workload, "run": run, **fields}), flush=True)


def throughput(num_prompt_tokens: int, num_output_tokens: int, wall_s: float) -> dict[str, float]:
    """Return the two rates that every result names."""
    return {
        "out_tps": round(num_output_tokens / wall_s, 1),
        "total_tps": round((num_prompt_tokens + num_output_tokens) / wall_s, 1),
    }


def _parents() -> dict[int, int]:
    pids = [int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit()]
    return {pid: int(fields[1]) for pid in pids if (fields := _stat_fields(pid))}


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` after the name, which may hold spaces; none when it has ended."""
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()
