"""``open_device``: the compiled kernels where there are any, torch's operations where not."""

import logging

from pageport.errors import BackendUnavailable
from pageport_cpu.device import CpuDevice
from pageport_cpu.kernel_store import LibraryUnavailable
from pageport_cpu.library import load_library
from pageport_cpu.native_device import NativeCpuDevice
from pageport_cpu.processors import count_cores

logger = logging.getLogger(__name__)


def open_device(threads: int | None, kernels: str = "auto", *, eager_cache: bool = False) -> CpuDevice:
    """Open the processors; says in the log when the fast path is missing, and how to get it.

    Args:
        threads: how many compute; default: one a physical core, or torch's choice without the kernels.
        kernels: "auto", "none", or an instruction set that this machine has.
        eager_cache: take all memory of a KV cache from the system when it is allocated.
    """
    if kernels == "none":
        return CpuDevice(threads, eager_cache=eager_cache)
    try:
        library = load_library(instruction_set=None if kernels == "auto" else kernels)
    except LibraryUnavailable as error:
        if kernels != "auto":
            raise BackendUnavailable(f"The cpu backend has no kernels for {kernels}: {error}") from error
        logger.warning("CPU kernels: %s Torch's own operations are used, which are several times slower.", error)
        return CpuDevice(threads, eager_cache=eager_cache)
    return NativeCpuDevice(library, threads or count_cores(), eager_cache=eager_cache)
