"""How many cores a process may use, on made-up machines."""

import os
from pathlib import Path

import pytest

from pageport_cpu.processors import count_cores


def machine(root: Path, siblings: list[str], name: str = "core_cpus_list") -> Path:
    """Write the topology of a machine: for each processor the hardware threads of its core."""
    for processor, group in enumerate(siblings):
        folder = root / f"sys/devices/system/cpu/cpu{processor}/topology"
        folder.mkdir(parents=True)
        (folder / name).write_text(f"{group}\n")
    return root


def control_group(root: Path, membership: str, files: dict[str, str]) -> None:
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(f"7:memory:/elsewhere\n{membership}\n")
    for name, text in files.items():
        file = root / "sys/fs/cgroup" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")


@pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
@pytest.mark.parametrize(
    ("siblings", "allowed", "cores"),
    [
        (["0-1", "0-1", "2-3", "2-3"], {0, 1, 2, 3}, 2),
        (["0,4", "1,5", "2,6", "3,7"] * 2, set(range(8)), 4),
        (["0,4", "1,5", "2,6", "3,7"] * 2, {0, 4, 1}, 2),
        (["0", "1", "2"], {0, 1, 2}, 3),
        (["0", "1", "2"], {1}, 1),
    ],
)
def test_hardware_threads_of_a_core_count_once(tmp_path, name, siblings, allowed, cores):
    assert count_cores(machine(tmp_path, siblings, name), allowed) == cores


def test_without_topology_each_processor_is_a_core(tmp_path):
    assert count_cores(tmp_path, {0, 3, 5}) == 3


@pytest.mark.parametrize(
    ("membership", "files", "cores"),
    [
        ("0::/box", {"box/cpu.max": "200000 100000"}, 2),
        ("0::/box", {"box/cpu.max": "250000 100000"}, 2),
        ("0::/box", {"box/cpu.max": "50000 100000"}, 1),
        ("0::/box", {"box/cpu.max": "max 100000"}, 8),
        ("0::/slice/box", {"slice/box/cpu.max": "max 100000", "slice/cpu.max": "300000 100000"}, 3),
        ("0::/out/of/sight", {"cpu.max": "400000 100000"}, 4),
        ("3:cpu,cpuacct:/box", {"cpu/box/cpu.cfs_quota_us": "150000", "cpu/box/cpu.cfs_period_us": "50000"}, 3),
        ("3:cpu,cpuacct:/box", {"cpu/box/cpu.cfs_quota_us": "-1", "cpu/box/cpu.cfs_period_us": "50000"}, 8),
        ("3:cpuset:/box", {"cpu/box/cpu.cfs_quota_us": "50000", "cpu/box/cpu.cfs_period_us": "50000"}, 8),
        ("0::/box", {}, 8),
    ],
)
def test_a_control_groups_quota_limits(tmp_path, membership, files, cores):
    control_group(machine(tmp_path, [str(i) for i in range(8)]), membership, files)
    assert count_cores(tmp_path, range(8)) == cores


def test_this_machine_has_between_one_core_and_its_affinity():
    assert 1 <= count_cores() <= len(os.sched_getaffinity(0))
