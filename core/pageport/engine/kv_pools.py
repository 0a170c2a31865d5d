"""``KVPools``: the device's pool and the host's swap pool of every cache group."""

from collections.abc import Sequence
from typing import Any

import torch

from pageport.backend.device import Device
from pageport.backend.kv import KVSpec
from pageport.cache.layout import GroupLayout
from pageport.scheduling.batch import Batch


class KVPools:
    """Moves blocks as a batch asks."""

    def __init__(self, device: Device, specs: Sequence[KVSpec], groups: Sequence[GroupLayout]) -> None:
        """Allocate.

        Raises:
            OutOfMemory: it does not fit.
        """
        self._device = device
        self.on_device: list[Any] = [device.allocate_kv(s, g.num_blocks) for s, g in zip(specs, groups, strict=True)]
        self._on_host = [
            torch.empty((g.num_host_blocks, device.bytes_per_block(s)), dtype=torch.uint8)
            for s, g in zip(specs, groups, strict=True)
        ]

    @property
    def is_closed(self) -> bool:
        return not self.on_device

    def move_blocks(self, batch: Batch) -> None:
        """Swap out, swap in, then copy."""
        for group, pairs in batch.swap_out:
            saved = self._on_host[group].new_empty((len(pairs), self._on_host[group].shape[1]))
            self._device.export_blocks(self.on_device[group], [source for source, _ in pairs], saved)
            self._on_host[group][[target for _, target in pairs]] = saved
        for group, pairs in batch.swap_in:
            data = self._on_host[group][[source for source, _ in pairs]]
            self._device.import_blocks(self.on_device[group], [target for _, target in pairs], data)
        for group, pairs in batch.copies:
            self._device.copy_blocks(self.on_device[group], pairs)

    def close(self) -> None:
        """Free them; nothing on the device uses them any more."""
        for pool in self.on_device:
            self._device.free_kv(pool)
        self.on_device, self._on_host = [], []
