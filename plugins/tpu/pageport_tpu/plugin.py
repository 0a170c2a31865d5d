"""Entry point: imports neither torch nor jax."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pageport.backend import Backend, Probe, Rank, hookimpl
from pageport.errors import BackendUnavailable, ConfigurationError
from pageport_tpu.chips import find_chips, is_simulated

if TYPE_CHECKING:
    from pageport.backend.device import Device


class TpuBackend(Backend):
    """TPU chips, one as one device; or one that is simulated on the host."""

    name = "tpu"
    interface = (1, 0)
    priority = 30

    @classmethod
    def probe(cls) -> Probe:
        return find_chips()

    def open(self, ordinal: int, options: Mapping[str, str], rank: Rank = Rank()) -> "Device":  # noqa: B008 - frozen
        """Open a chip; this backend has no options."""
        _refuse(options)
        probe = self.probe()
        if not 0 <= ordinal < probe.count:
            raise BackendUnavailable(
                f"There is no TPU {ordinal}: {probe.reason or f'they are numbered 0 … {probe.count - 1}.'}"
            )
        # Here, because plugins are imported before anyone asks for a device.
        from pageport_tpu.device import open_device

        return open_device(ordinal, "cpu" if is_simulated() else "tpu")

    def simulate(self, options: Mapping[str, str]) -> "Device":
        _refuse(options)
        from pageport_tpu.device import open_device

        return open_device(0, "cpu")


def _refuse(options: Mapping[str, str]) -> None:
    if options:
        raise ConfigurationError(f"Unknown option {min(options)!r} of the tpu backend: it has none.")


@hookimpl
def pageport_backends() -> list[type[Backend]]:
    return [TpuBackend]
