"""The simulated device passes the conformance suite."""

import pytest

from pageport.testing.conformance import Context, Level, run_suite
from pageport.testing.conformance.card import ScoreCard
from pageport_neuron.plugin import NeuronBackend

OPTIONS = {"token_buckets": "64", "request_buckets": "8"}


@pytest.fixture(scope="module")
def context():
    context = Context(NeuronBackend, options=OPTIONS, seed=20, is_simulated=True)
    yield context
    context.close()


def judge(context: Context, level: Level) -> None:
    outcomes = run_suite(context, [level])
    card = ScoreCard(
        name="neuron", seed=context.seed, outcomes=outcomes, options=context.options, is_simulated=context.is_simulated
    )
    assert card.is_passed, card.failure_report()


@pytest.mark.full
@pytest.mark.parametrize("level", [level for level in Level if level <= Level.FAULTS], ids=lambda level: level.name)
def test_levels_pass(context, level):
    judge(context, level)
