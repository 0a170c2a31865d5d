"""``Gpu`` and ``DriverError``: what both of the driver's libraries say."""

from typing import Any, NamedTuple

NAME_BYTES = 96


class Gpu(NamedTuple):
    """One GPU; ``identity`` is what ``CUDA_VISIBLE_DEVICES`` may name it by."""

    name: str
    identity: str
    capability: tuple[int, int]


class DriverReport(NamedTuple):
    """The driver's version and its GPUs, in its order."""

    driver: str
    gpus: list[Gpu]


class DriverError(Exception):
    """A call of one of the driver's libraries failed."""


def call(library: Any, function: str, *arguments: Any) -> None:
    """Call a function that returns 0 for success."""
    status = getattr(library, function)(*arguments)
    if status:
        raise DriverError(f"{function} returns {status}")
