"""``run_suite``: every check of the chosen levels over one backend."""

import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module

from pageport.backend.interface import Backend, Deviation
from pageport.testing.conformance.check import Check, Level, Outcome, Status
from pageport.testing.conformance.context import Context

# Each module has ``checks(context) -> Iterator[Check]``: what applies to the capabilities the device declares.
LEVEL_MODULES = {
    Level.DISCOVERY: "discovery",
    Level.MEMORY: "memory",
    Level.KV_AND_WEIGHTS: "kv_and_weights",
    Level.ATTENTION: "attention",
    Level.OPS: "ops",
    Level.ENGINE: "engine",
    Level.DETERMINISM: "determinism",
    Level.FAULTS: "faults",
    Level.PERFORMANCE: "performance",
}


def all_checks(context: Context, levels: Sequence[Level]) -> Iterator[Check]:
    """Yield the checks of ``levels`` that apply to this backend."""
    for level in levels:
        module = import_module(f"pageport.testing.conformance.levels.{LEVEL_MODULES[level]}")
        yield from module.checks(context)


def run_suite(
    context: Context,
    levels: Sequence[Level],
    *,
    only: str | None = None,
    on_outcome: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Run the checks and return their outcomes.

    Args:
        only: name of a check, or a prefix of names; others are left out.
        on_outcome: told of each outcome as it comes.
    """
    outcomes = []
    for level in levels:
        try:
            checks = list(all_checks(context, [level]))
        except Exception as error:
            # What applies depends on the device's own answers: a device that cannot give them fails the level.
            checks = [Check(level, f"{LEVEL_MODULES[level]}/prepare", _raiser(error))]
        for check in checks:
            if only is None or check.name.startswith(only):
                outcomes.append(run_check(context, check))
                on_outcome(outcomes[-1])
    return outcomes


def run_check(context: Context, check: Check) -> Outcome:
    """Run one check; whatever it raises is its outcome."""
    context.check_name, context.measured = check.name, ""
    deviation = find_deviation(context.backend, check.name)
    start = time.perf_counter()
    try:
        check.run(context)
        status, message = Status.PASSED, ""
    except Exception as error:
        status, message = Status.FAILED, _described(error)
        if deviation is not None and isinstance(error, deviation.exception):
            status, message = Status.DEVIATES, f"{deviation.kind}: {deviation.reason}"
    if deviation is not None and status is Status.PASSED:
        status, message = Status.FAILED, f"passes, though declared {deviation.kind}: remove the deviation"
    return Outcome(
        level=check.level,
        name=check.name,
        status=status,
        seconds=time.perf_counter() - start,
        message=message,
        measured=context.measured,
    )


def find_deviation(backend: type[Backend], name: str) -> Deviation | None:
    """Return the deviation the backend declares for a check; a name ending in ``/`` covers all below it."""
    for deviation in backend.deviations:
        if name == deviation.check or (deviation.check.endswith("/") and name.startswith(deviation.check)):
            return deviation
    return None


def _described(error: Exception) -> str:
    text = str(error).strip()
    if isinstance(error, AssertionError) and text:
        return text
    return f"{type(error).__name__}: {text}"


def _raiser(error: Exception) -> Callable[[Context], None]:
    def run(_context: Context) -> None:
        raise error

    return run
