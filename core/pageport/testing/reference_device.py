"""``ReferenceDevice``: core's plain-torch reference in float32 on the host, with nothing replaced."""

import torch

from pageport.backend.capabilities import Capabilities
from pageport.backend.device import Device
from pageport.backend.kv import Memory

# What it says it has: tiny models need far less, and the answer is the same on every machine.
TOTAL_BYTES = 1 << 30


class ReferenceDevice(Device):
    """The three methods that a device cannot inherit; what other devices are compared with."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            kv_dtypes=("float32", "float8_e4m3fn", "float8_e5m2", "int8"),
            block_sizes=tuple(2**power for power in range(11)),
            kv_kinds=("full", "sliding"),
            attention_variants=("sliding_window", "softcap", "sinks", "alibi"),
            determinism="run",
        )

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def memory(self) -> Memory:
        return Memory(total=TOTAL_BYTES, free=TOTAL_BYTES, reserved_by_this_process=0)
