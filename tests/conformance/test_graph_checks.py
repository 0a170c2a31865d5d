"""Graphs add checks where they are declared, and a device that replays rightly passes them."""

import pytest

from pageport.backend import Backend, Probe
from pageport.testing.conformance import Context, Level, Status
from pageport.testing.conformance.suite import all_checks, run_check
from pageport.testing.reference_device import ReferenceDevice
from pageport.testing.replaying_device import ReplayingDevice


class ReferenceBackend(Backend):
    """The reference; a subclass has graphs."""

    name = "reference"
    device = ReferenceDevice

    @classmethod
    def probe(cls):
        return Probe(count=1)

    def open(self, ordinal, options, rank=None):
        return self.device()


class ReplayingBackend(ReferenceBackend):
    device = ReplayingDevice


def graph_checks(backend):
    context = Context(backend)
    return context, [check for check in all_checks(context, [Level.OPS, Level.ENGINE]) if "graph" in check.name]


def test_no_check_asks_for_graphs_that_are_not_declared():
    assert graph_checks(ReferenceBackend)[1] == []


@pytest.mark.parametrize(
    "name",
    [
        "ops/graph/float32",
        "engine/llama/graphs replayed",
        "engine/gpt2/graphs replayed",
        "engine/llama/graphs turned off",
        "engine/gpt2/graphs turned off",
    ],
)
def test_device_that_replays_rightly_passes(name):
    context, checks = graph_checks(ReplayingBackend)
    assert name in [check.name for check in checks]
    outcome = run_check(context, next(check for check in checks if check.name == name))
    assert (outcome.status, outcome.message) == (Status.PASSED, "")


def test_error_in_an_op_is_injected_although_decodes_are_replayed():
    context = Context(ReplayingBackend)
    struck = [check for check in all_checks(context, [Level.FAULTS]) if "error in" in check.name]
    assert len(struck) > 5
    assert {run_check(context, check).message for check in struck} == {""}
