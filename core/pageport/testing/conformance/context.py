"""``Context``: what a check gets: the backend, one opened device, and random numbers that repeat."""

import hashlib
from collections.abc import Mapping

import numpy as np
import torch

from pageport.backend.capabilities import Capabilities
from pageport.backend.device import Device
from pageport.backend.interface import Backend


class Context:
    """One run of the suite over one backend.

    Each check draws from a generator made of the run's seed and the check's own name, so that it repeats alone.
    """

    def __init__(
        self,
        backend: type[Backend],
        *,
        ordinal: int = 0,
        options: Mapping[str, str] | None = None,
        seed: int = 0,
        is_simulated: bool = False,
    ) -> None:
        """Say what is judged.

        Args:
            is_simulated: judge the device that ``Backend.simulate`` opens; none need be there.
        """
        self.backend = backend
        self.ordinal = ordinal
        self.options = dict(options or {})
        self.is_simulated = is_simulated
        self.seed = seed
        self.check_name = ""
        self.measured = ""  # a check may leave a figure here for the score card
        self._device: Device | None = None

    @property
    def device(self) -> Device:
        """The device, opened on first use and shared by all checks."""
        if self._device is None:
            self._device = self.open_device()
        return self._device

    @property
    def capabilities(self) -> Capabilities:
        return self.device.capabilities

    def open_device(self, **more_options: str) -> Device:
        """Open another device, with options besides those of the run; the caller closes it."""
        options = {**self.options, **more_options}
        return self.backend().simulate(options) if self.is_simulated else self.backend().open(self.ordinal, options)

    def numpy_generator(self) -> np.random.Generator:
        """Return this check's numpy generator."""
        return np.random.default_rng(self._check_seed())

    def torch_generator(self) -> torch.Generator:
        """Return this check's torch generator, on the host."""
        return torch.Generator().manual_seed(self._check_seed())

    def close(self) -> None:
        if self._device is not None:
            self._device.close()
            self._device = None

    def _check_seed(self) -> int:
        digest = hashlib.sha256(f"{self.seed}/{self.check_name}".encode()).digest()
        return int.from_bytes(digest[:7], "little")
