"""Part: the conformance suite on the device, levels 0 to 6.

What memory says is checked alone; then several processes share the other checks, as most of the time goes by in
compiling kernels.
"""

import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import NamedTuple

from part import Part

from pageport.backend.discovery import discover, select
from pageport.testing.conformance.check import Level, Outcome, Status
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.suite import all_checks, run_check

SEED = 2026
ALONE = (Level.DISCOVERY, Level.MEMORY)
SHARED = (Level.KV_AND_WEIGHTS, Level.ATTENTION, Level.OPS, Level.ENGINE, Level.DETERMINISM)
NUM_PROCESSES, DRY_PROCESSES = 12, 2
DRY_STRIDE = 40  # a dry run does every so many checks
TIME_S = 62.0


class Share(NamedTuple):
    """Every ``num_shares``-th check of ``levels``, from ``first`` on."""

    backend: str
    levels: tuple[Level, ...]
    first: int
    num_shares: int
    stride: int
    deadline: float  # time.time()


class Tally(NamedTuple):
    """What came of a share; ``not_reached`` names levels."""

    outcomes: list[Outcome]
    not_reached: list[Level]


def main() -> None:
    with Part("check_conformance") as part:
        deadline = time.time() + TIME_S
        stride = DRY_STRIDE if part.is_dry else 1
        report(part, [run_share(Share(part.backend, ALONE, 0, 1, stride // 8 or 1, deadline))])
        count = DRY_PROCESSES if part.is_dry else NUM_PROCESSES
        shares = [Share(part.backend, SHARED, first, count, stride, deadline) for first in range(count)]
        with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
            report(part, list(pool.map(run_share, shares)))


def run_share(share: Share) -> Tally:
    """Open the device and run the checks of a share until the deadline."""
    context = Context(select(discover(), share.backend).backend, seed=SEED)
    tally = Tally([], [])
    checks = list(all_checks(context, share.levels))[:: share.stride]
    for check in checks[share.first :: share.num_shares]:
        if time.time() > share.deadline:
            tally.not_reached.append(check.level)
        else:
            tally.outcomes.append(run_check(context, check))
    context.close()
    return tally


def report(part: Part, tallies: list[Tally]) -> None:
    """Add up by level."""
    outcomes = [outcome for tally in tallies for outcome in tally.outcomes]
    left = Counter(level for tally in tallies for level in tally.not_reached)
    for level in sorted({outcome.level for outcome in outcomes} | set(left)):
        some = [outcome for outcome in outcomes if outcome.level == level]
        counts = dict(Counter(outcome.status.value for outcome in some))
        if left[level]:
            counts["not reached"] = left[level]
        failures = [f"{o.name}: {o.message[:300]}" for o in some if o.status is Status.FAILED]
        part.add(f"level {int(level)}, {level.title}", {**counts, "failures": failures})


if __name__ == "__main__":
    main()
