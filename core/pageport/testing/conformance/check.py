"""``Check``: one thing a backend must get right, and ``Outcome``: what came of it."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pageport.testing.conformance.context import Context


class Level(IntEnum):
    """Levels build on each other: a backend that fails one makes little sense on the next."""

    DISCOVERY = 0
    MEMORY = 1
    KV_AND_WEIGHTS = 2
    ATTENTION = 3
    OPS = 4
    ENGINE = 5
    DETERMINISM = 6
    FAULTS = 7
    PERFORMANCE = 8

    @property
    def title(self) -> str:
        return self.name.replace("_", " ").lower().replace("kv", "KV")


@dataclass(frozen=True)
class Check:
    """``run`` raises ``AssertionError`` with a message that points at the cause.

    ``name`` is a path such as ``attention/decode/gqa 3, head 64, block 16``: stable, unique, what ``--check`` takes
    and what a ``Deviation`` names (a prefix ending in ``/`` names all below it).
    """

    level: Level
    name: str
    run: Callable[["Context"], None]


class Status(Enum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    DEVIATES = "deviates"  # it failed as the backend declares


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One check's result; ``message`` says why it failed or how it deviates, ``measured`` what was reported."""

    level: Level
    name: str
    status: Status
    seconds: float
    message: str = ""
    measured: str = ""
