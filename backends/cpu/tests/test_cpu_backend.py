"""The CPU backend: probe, options, capabilities and memory under control groups."""

import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from pageport.backend.discovery import discover, select
from pageport.backend.op_table import compile_ops
from pageport.errors import BackendError, BackendUnavailable, ConfigurationError
from pageport_cpu.device import CpuDevice, multiplies_bfloat16
from pageport_cpu.instruction_sets import available_sets
from pageport_cpu.kernel_store import LibraryUnavailable
from pageport_cpu.memory import read_memory
from pageport_cpu.plugin import CpuBackend

GIB = 2**30


def test_probe_finds_one_device_without_importing_torch():
    code = (
        "import sys; from pageport_cpu.plugin import CpuBackend; "
        "print(CpuBackend.probe().count, 'torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "1 False\n"


def test_probe_without_torch_says_what_to_install(monkeypatch):
    monkeypatch.setattr("pageport_cpu.plugin.find_spec", lambda name: None)
    probe = CpuBackend.probe()
    assert (probe.count, probe.reason) == (0, 'torch is not installed. Run: pip install "pageport[cpu]"')


def test_cpu_is_found_by_name():
    assert select(discover({"PAGEPORT_BACKENDS": "cpu"}), "cpu").backend.priority == 0


def test_only_device_zero_exists():
    with pytest.raises(BackendUnavailable, match="no CPU device 1"):
        CpuBackend().open(1, {})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"treads": "2"}, "Unknown option 'treads' of the cpu backend. Known: threads"),
        ({"threads": "0"}, "threads is '0'; give a whole number of at least 1"),
        ({"threads": "two"}, "threads is 'two'"),
        ({"cache": "small"}, "cache is 'small'; give lazy or eager"),
        ({"kernels": "sse9"}, "kernels is 'sse9'; this machine takes auto, none, .*portable"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ConfigurationError, match=message):
        CpuBackend().open(0, options)


def test_threads_option_sets_torch_threads():
    before = torch.get_num_threads()
    try:
        CpuBackend().open(0, {"threads": "1", "kernels": "none"})
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("kernels", ["auto", "none"])
@pytest.mark.parametrize("cache", ["lazy", "eager"])
def test_cache_option_says_when_memory_is_taken(kernels, cache):
    # In a process of its own: this one has memory left over from other tests, which would be taken again.
    code = f"""
import os
from pathlib import Path
from pageport.backend import KVSpec
from pageport.backend.reference.kv import bytes_per_block
from pageport_cpu.plugin import CpuBackend
def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
spec = KVSpec(num_layers=2, num_kv_heads=2, head_size=64, value_head_size=64, block_size=16, dtype="bfloat16")
device = CpuBackend().open(0, {{"kernels": {kernels!r}, "cache": {cache!r}}})
before = resident_bytes()
pool = device.allocate_kv(spec, 64 * 2**20 // bytes_per_block(spec))
print((resident_bytes() - before) // 2**20)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(result.stdout) > 60 if cache == "eager" else int(result.stdout) < 8


def test_device_may_be_closed_twice():
    device = CpuBackend().open(0, {})
    device.close()
    device.close()


def test_strict_ops_are_refused_where_torch_serves_them_and_taken_with_kernels():
    for options, is_refused in (({"kernels": "none"}, True), ({}, False)):
        device = CpuBackend().open(0, options)
        with pytest.raises(BackendError, match="--strict-ops") if is_refused else nullcontext():
            compile_ops(device, strict=True)


def test_every_op_is_served_by_kernels():
    implementations = compile_ops(CpuBackend().open(0, {})).implementations
    assert {name for name, how in implementations.items() if how.source == "reference"} == set()


def test_machine_without_kernels_computes_with_torch_and_says_how_to_get_them(monkeypatch, caplog):
    def unavailable(**_):
        raise LibraryUnavailable("there is no C++ compiler. Install one.")

    monkeypatch.setattr("pageport_cpu.open_device.load_library", unavailable)
    assert type(CpuBackend().open(0, {})) is CpuDevice
    assert "there is no C++ compiler. Install one. Torch's own operations" in caplog.text


@pytest.mark.parametrize("target", available_sets(), ids=lambda target: target.name)
def test_kernels_option_chooses_the_instruction_set(target):
    assert CpuBackend().open(0, {"kernels": target.name}).instruction_set == target.name


def test_captured_step_reads_what_its_buffers_hold_when_it_is_replayed():
    device = CpuBackend().open(0, {})
    x, weight, out = torch.randn(3, 48), torch.randn(48), torch.empty(3, 48)
    graph = device.capture(lambda: device.rms_norm(x, weight, 1e-5, out))
    x.copy_(torch.randn(3, 48))
    graph.replay()
    assert torch.equal(out, device.rms_norm(x, weight, 1e-5))


@pytest.mark.parametrize(
    ("flags", "expected"), [("flags\t: sse avx2 amx_bf16 amx_tile", True), ("flags\t: avx512f avx512_bf16", False)]
)
def test_bfloat16_is_preferred_only_with_tile_instructions(tmp_path, flags, expected):
    (tmp_path / "cpuinfo").write_text(f"model name\t: amx_bf16\n{flags}\n")
    assert multiplies_bfloat16(tmp_path / "cpuinfo") is expected


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    """Lay out the files of a machine with 16 GiB, of which 12 are available."""
    files = files | {
        "proc/meminfo": "MemTotal:       16777216 kB\nMemFree:         1 kB\nMemAvailable:   12582912 kB\n",
        "proc/self/statm": "900 200 30 1 0 50 0\n",
        "proc/self/cgroup": cgroup,
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_memory_without_limits_is_the_machines(tmp_path):
    memory = read_memory(machine(tmp_path, "0::/\n", {}))
    assert (memory.total, memory.free) == (16 * GIB, 12 * GIB)
    assert memory.reserved_by_this_process > 0


def test_memory_respects_a_control_group_and_does_not_count_its_page_cache(tmp_path):
    group = "sys/fs/cgroup/app"
    files = {
        f"{group}/memory.max": f"{4 * GIB}\n",
        f"{group}/memory.current": f"{3 * GIB}\n",
        f"{group}/memory.stat": f"anon 5\ninactive_file {GIB}\n",
    }
    memory = read_memory(machine(tmp_path, "0::/app\n", files))
    assert (memory.total, memory.free) == (4 * GIB, 2 * GIB)


def test_tightest_group_above_counts(tmp_path):
    files = {
        "sys/fs/cgroup/pod/app/memory.max": "max\n",
        "sys/fs/cgroup/pod/memory.max": f"{2 * GIB}\n",
        "sys/fs/cgroup/pod/memory.current": f"{3 * GIB}\n",
    }
    memory = read_memory(machine(tmp_path, "0::/pod/app\n", files))
    assert (memory.total, memory.free) == (2 * GIB, 0)


def test_memory_respects_version_1_groups_seen_from_inside_a_container(tmp_path):
    files = {
        "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{8 * GIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{2 * GIB}\n",
        "sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {GIB}\n",
    }
    memory = read_memory(machine(tmp_path, "4:cpu:/x\n9:memory:/docker/1234\n0::/\n", files))
    assert (memory.total, memory.free) == (8 * GIB, 7 * GIB)


def test_real_memory_adds_up():
    memory = CpuDevice().memory()
    assert 0 < memory.free <= memory.total
    assert 0 < memory.reserved_by_this_process < memory.total
