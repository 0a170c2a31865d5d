"""The device: torch on the host."""

import os
from pathlib import Path

import torch

from pageport.backend import Capabilities, Memory
from pageport_example.attention import DecodeAttention


class ExampleDevice(DecodeAttention):
    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(decode_first=True)  # float32, blocks of 16 tokens, no attention variants

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu")

    def memory(self) -> Memory:
        page = os.sysconf("SC_PAGE_SIZE")
        own = int(Path("/proc/self/statm").read_text().split()[1])
        return Memory(
            total=os.sysconf("SC_PHYS_PAGES") * page,
            free=os.sysconf("SC_AVPHYS_PAGES") * page,
            reserved_by_this_process=own * page,
        )
