"""``CpuDevice``: the plain-torch reference, with this machine's memory and dtypes."""

from pathlib import Path
from typing import Any

import torch

from pageport.backend import Capabilities, KVSpec, Memory
from pageport.backend.device import Device
from pageport.backend.reference.kv import ReferenceKVPool
from pageport_cpu.memory import read_memory, return_freed_memory


class CpuDevice(Device):
    """All processors of this machine."""

    def __init__(self, threads: int | None = None, *, eager_cache: bool = False) -> None:
        """Set torch's thread count for this process if ``threads`` is given.

        Args:
            eager_cache: take all memory of a KV cache from the system when it is allocated.
        """
        self._eager_cache = eager_cache
        if threads is not None:
            torch.set_num_threads(threads)
        self._capabilities = Capabilities(
            compute_dtypes=("float32", "bfloat16", "float16"),
            preferred_dtype="bfloat16" if multiplies_bfloat16(Path("/proc/cpuinfo")) else "float32",
            kv_dtypes=("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "int8"),
            block_sizes=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            kv_kinds=("full", "sliding"),
            attention_variants=("sliding_window", "softcap", "sinks", "alibi"),
            determinism="run",
        )

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def allocate_kv(self, spec: KVSpec, num_blocks: int) -> Any:
        pool: ReferenceKVPool = super().allocate_kv(spec, num_blocks)
        if self._eager_cache:
            for tensor in (pool.key, pool.value, pool.key_scale, pool.value_scale):
                if tensor is not None:
                    tensor.zero_()
        return pool

    def memory(self) -> Memory:
        return read_memory()

    def close(self) -> None:
        return_freed_memory()


def multiplies_bfloat16(cpuinfo: Path) -> bool:
    """Tell whether bfloat16 matrices are multiplied by tile instructions; without these float32 is faster."""
    if not cpuinfo.exists():
        return False
    with cpuinfo.open() as lines:
        return any("amx_bf16" in line.split() for line in lines if line.startswith("flags"))
