"""``Backend``: what a plugin offers before any device is opened. No torch here."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from pageport.errors import UnsupportedFeature

if TYPE_CHECKING:
    from pageport.backend.device import Device

# The version of this interface: (major, minor). A minor one only adds; docs/interface.md has the promise.
INTERFACE = (1, 0)


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What a backend found without opening a device.

    ``count`` devices are usable; when it is 0, ``reason`` says in one sentence why and what to install.
    """

    count: int
    reason: str = ""
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Rank:
    """This process's place among the processes that share one model."""

    index: int = 0
    world_size: int = 1


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """A conformance check that a backend fails, declared: an unexpected pass fails too.

    ``check`` is a check's name, or the part of names up to a ``/``. ``kind``: ``not_implemented`` (it could be),
    ``not_available`` (its runtime cannot yet), ``never`` (with the reason).
    """

    check: str
    kind: Literal["not_implemented", "not_available", "never"]
    reason: str
    exception: type[Exception] = AssertionError


class Backend(ABC):
    """One kind of hardware. ``name`` is what users type after ``--backend``."""

    name: ClassVar[str]
    # The interface version it was written for.
    interface: ClassVar[tuple[int, int]] = INTERFACE
    # `--backend auto` takes the usable backend with the highest priority; the CPU has 0.
    priority: ClassVar[int] = 10
    # Environment variables that its runtime libraries read when they are first loaded (thread pools, say). An engine
    # sets them before it imports torch, unless the user has set them.
    environment: ClassVar[Mapping[str, str]] = {}
    deviations: ClassVar[tuple[Deviation, ...]] = ()

    @classmethod
    @abstractmethod
    def probe(cls) -> Probe:
        """Look for devices: never raises, under 100 ms, opens no device context, imports no torch."""

    @abstractmethod
    def open(self, ordinal: int, options: Mapping[str, str], rank: Rank = Rank()) -> "Device":
        """Open device ``ordinal``.

        Args:
            options: ``--backend-option key=value`` pairs; an unknown key is a ``ConfigurationError``.

        Raises:
            BackendUnavailable: there is no such device.
        """

    def simulate(self, options: Mapping[str, str]) -> "Device":
        """Open the device as it is simulated on the host: its capabilities, its limits, its code, but not its speed.

        Args:
            options: those of ``open``.

        Raises:
            UnsupportedFeature: this backend has no simulation, which is what is inherited.
        """
        raise UnsupportedFeature(f"Backend {self.name} cannot be simulated on the host.")

    def open_compiler(self, options: Mapping[str, str]) -> "Device":
        """Open what compiles programs for a device that need not be here; what it computes may be anything.

        Engines are built on it, and every program compiled into the device's cache, but none is run
        (``pageport compile``).

        Args:
            options: those of ``open``.

        Raises:
            UnsupportedFeature: this backend compiles nothing ahead of time, which is what is inherited.
            BackendUnavailable: its compiler is not installed.
        """
        raise UnsupportedFeature(f"Backend {self.name} compiles nothing ahead of time.")
