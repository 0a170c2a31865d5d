"""The simulated device of static shapes passes the suite, which asks more of it than of others."""

from collections.abc import Iterator

import pytest

from pageport.testing.conformance import Context, Level, Status, run_suite
from pageport.testing.conformance.suite import all_checks
from pageport.testing.static_backend import StaticBackend

# A few of each level from the memory up; the full run has them all.
FEW = (
    "kv/write/values come back, float32",
    "attention/variants/sliding_window and sinks",
    "ops/sample, all filters/bfloat16",
    "engine/program/llama/padding is written nowhere",
    "engine/program/llama/tokens are chosen",
    "engine/program/mistral/every bucket",
    "faults/error in a program's step, decode",
)


@pytest.fixture(scope="module")
def context() -> Iterator[Context]:
    opened = Context(StaticBackend, seed=11)
    yield opened
    opened.close()


def level_of(name: str) -> Level:
    levels = {
        "kv": Level.KV_AND_WEIGHTS,
        "attention": Level.ATTENTION,
        "ops": Level.OPS,
        "engine": Level.ENGINE,
        "faults": Level.FAULTS,
    }
    return levels[name.partition("/")[0]]


@pytest.mark.parametrize("name", FEW)
def test_simulated_device_passes(context, name):
    (outcome,) = run_suite(context, [level_of(name)], only=name)
    assert (outcome.status, outcome.message) == (Status.PASSED, "")


def test_simulated_device_is_discovered_in_a_fresh_process(context):
    outcomes = run_suite(context, [Level.DISCOVERY])
    assert len(outcomes) > 15
    assert [outcome.message for outcome in outcomes if outcome.status is not Status.PASSED] == []


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("level", [level for level in Level if level is not Level.PERFORMANCE])
def test_simulated_device_passes_the_whole_level(context, level):
    outcomes = run_suite(context, [level])
    assert outcomes
    assert [f"{o.name}: {o.message}" for o in outcomes if o.status is not Status.PASSED] == []


def test_programs_are_asked_of_devices_with_static_shapes_alone(context):
    from .test_suite import PlainBackend

    names = [check.name for check in all_checks(context, [Level.ENGINE]) if "/program/" in check.name]
    assert len(names) > 6
    plain = all_checks(Context(PlainBackend), [Level.ENGINE])
    assert not [check.name for check in plain if "/program/" in check.name]
