"""Entry point: imports no torch."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pageport.backend import Backend, Probe, Rank, hookimpl
from pageport.errors import BackendUnavailable, ConfigurationError

if TYPE_CHECKING:
    from pageport.backend.device import Device


class ExampleBackend(Backend):
    name = "example"
    interface = (1, 0)  # what it was written for
    priority = -1  # `--backend auto` prefers the CPU, which has 0

    @classmethod
    def probe(cls) -> Probe:
        return Probe(count=1)

    def open(self, ordinal: int, options: Mapping[str, str], rank: Rank = Rank()) -> "Device":  # noqa: B008 - frozen
        if ordinal != 0:
            raise BackendUnavailable(f"There is no example device {ordinal}; the only one is 0.")
        if options:
            raise ConfigurationError(f"example has no option {next(iter(options))!r}; it has none at all.")
        from pageport_example.device import ExampleDevice  # only now is torch imported

        return ExampleDevice()


@hookimpl
def pageport_backends() -> list[type[Backend]]:
    return [ExampleBackend]
