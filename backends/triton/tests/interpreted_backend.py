"""The CUDA backend as the conformance suite opens it where there is no GPU."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pageport.backend import Probe, Rank
from pageport_cuda.plugin import CudaBackend

if TYPE_CHECKING:
    from pageport.backend.device import Device


class InterpretedCuda(CudaBackend):
    """One device: its kernels run in Triton's interpreter, its streams and graphs are those of the recording fake."""

    @classmethod
    def probe(cls) -> Probe:
        return Probe(count=1)

    def open(self, ordinal: int, options: Mapping[str, str], rank: Rank = Rank()) -> "Device":  # noqa: B008 - frozen
        if ordinal or options:
            return super().open(ordinal, options, rank)
        # Here, because plugins are imported before anyone asks for a device.
        from .recorded_device import InterpretedDevice

        return InterpretedDevice()


class RecordedCuda(InterpretedCuda):
    """The same with core's reference in place of the kernels."""

    def open(self, ordinal: int, options: Mapping[str, str], rank: Rank = Rank()) -> "Device":  # noqa: B008 - frozen
        if ordinal or options:
            return super().open(ordinal, options, rank)
        from .recorded_device import RecordedDevice

        return RecordedDevice()
