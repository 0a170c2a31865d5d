"""Entry point: imports no torch."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from pageport.backend import Backend, Probe, Rank, hookimpl
from pageport.errors import BackendUnavailable, ConfigurationError
from pageport_cpu.instruction_sets import available_sets
from pageport_cpu.kernel_store import describe_kernels
from pageport_cpu.processors import count_cores

if TYPE_CHECKING:
    from pageport.backend.device import Device


KNOWN_OPTIONS = ("threads", "kernels", "cache")


class CpuBackend(Backend):
    """The machine's own processors, as one device."""

    name = "cpu"
    interface = (1, 0)
    priority = 0
    # OpenMP threads that spin for milliseconds at each barrier starve each other when anything else runs on the
    # machine: decoding was 15 times slower with both cores busy.
    environment: ClassVar[Mapping[str, str]] = {"GOMP_SPINCOUNT": "1000"}

    @classmethod
    def probe(cls) -> Probe:
        """Return one device wherever torch is installed."""
        if find_spec("torch") is None:
            return Probe(count=0, reason='torch is not installed. Run: pip install "pageport[cpu]"')
        return Probe(count=1, details={"cores": str(count_cores()), "kernels": describe_kernels()})

    def open(self, ordinal: int, options: Mapping[str, str], rank: Rank = Rank()) -> "Device":  # noqa: B008 - frozen
        """Open the only device there is.

        Args:
            options: ``threads``: how many threads compute; default: one a physical core. ``kernels``: an
                instruction set to use, or none for torch's operations; default: the best there is. ``cache``: lazy
                (the default) takes the KV cache's memory from the system as it fills, eager all of it at the start,
                so that no request waits for it.
        """
        if ordinal != 0:
            raise BackendUnavailable(f"There is no CPU device {ordinal}: all processors together are device 0.")
        unknown = sorted(set(options) - {*KNOWN_OPTIONS})
        if unknown:
            known = ", ".join(KNOWN_OPTIONS)
            raise ConfigurationError(f"Unknown option {unknown[0]!r} of the cpu backend. Known: {known}.")
        threads = _threads(options.get("threads"))
        cache = options.get("cache", "lazy")
        if cache not in ("lazy", "eager"):
            raise ConfigurationError(f"cache is {cache!r}; give lazy or eager.")
        # Here, because plugins are imported before anyone asks for a device.
        from pageport_cpu.open_device import open_device

        return open_device(threads, _kernels(options.get("kernels", "auto")), eager_cache=cache == "eager")


@hookimpl
def pageport_backends() -> list[type[Backend]]:
    return [CpuBackend]


def _kernels(text: str) -> str:
    known = ["auto", "none", *(target.name for target in available_sets())]
    if text not in known:
        raise ConfigurationError(f"kernels is {text!r}; this machine takes {', '.join(known)}.")
    return text


def _threads(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigurationError(f"threads is {text!r}; give a whole number of at least 1.")
    return int(text)
