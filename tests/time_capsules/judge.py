"""Run conformance checks on an installed backend, in the process that this file is run in; print what failed."""

import sys

from pageport.backend.discovery import discover, select
from pageport.testing.conformance import Context, Level, run_suite
from pageport.testing.conformance.card import ScoreCard
from pageport.testing.conformance.check import Outcome

# One check of an engine stands for its level.
ENGINE_CHECK = "engine/llama/together"


def main(name: str) -> None:
    """Run levels 0 to 2 and one check of level 5."""
    context = Context(select(discover(), name).backend, seed=1)
    outcomes: list[Outcome] = run_suite(context, [Level.DISCOVERY, Level.MEMORY, Level.KV_AND_WEIGHTS])
    outcomes += run_suite(context, [Level.ENGINE], only=ENGINE_CHECK)
    context.close()
    card = ScoreCard(name=name, seed=1, outcomes=outcomes)
    print(sorted({int(outcome.level) for outcome in outcomes}), card.verdict)
    sys.exit(0 if card.is_passed else card.failure_report())


if __name__ == "__main__":
    main("example")
