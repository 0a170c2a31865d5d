"""A few checks of the conformance suite, on the simulated device; ``traced/conformance.py`` has the levels."""

import pytest

from pageport.testing.conformance import Context, Level, run_suite
from pageport.testing.conformance.card import ScoreCard
from pageport_neuron.plugin import NeuronBackend


@pytest.mark.parametrize(("level", "only"), [(Level.DISCOVERY, None), (Level.MEMORY, "memory/figures")])
def test_a_few_checks_pass(level, only):
    context = Context(NeuronBackend, options={"token_buckets": "64", "request_buckets": "8"}, is_simulated=True)
    outcomes = run_suite(context, [level], only=only)
    context.close()
    card = ScoreCard(name="neuron", seed=context.seed, outcomes=outcomes, is_simulated=True)
    assert card.is_passed, card.failure_report()
