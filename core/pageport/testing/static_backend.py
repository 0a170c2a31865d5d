"""``StaticBackend``: ``StaticDevice`` as a backend, for the conformance suite."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pageport.backend.interface import Backend, Probe, Rank
from pageport.errors import BackendUnavailable, ConfigurationError

if TYPE_CHECKING:
    from pageport.backend.device import Device


class StaticBackend(Backend):
    """One simulated device of static shapes."""

    name = "static"
    priority = -1  # nobody's choice but by name

    @classmethod
    def probe(cls) -> Probe:
        return Probe(count=1, details={"device": "simulated on the host"})

    def open(self, ordinal: int, options: Mapping[str, str], rank: Rank = Rank()) -> "Device":  # noqa: B008
        if ordinal != 0:
            raise BackendUnavailable(f"There is one simulated device, number 0; {ordinal} was asked for.")
        if options:
            raise ConfigurationError(f"The simulated device takes no option {next(iter(options))!r}.")
        # Torch takes seconds to load.
        from pageport.testing.static_device import StaticDevice

        return StaticDevice()
