"""The CPU backend passes the conformance suite: with the best kernels, with every other set, and with torch's ops."""

import secrets
from collections.abc import Mapping

import pytest

from pageport.testing.conformance.check import Level, Status
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.pytest_suite import *  # noqa: F403 - its tests and fixtures
from pageport.testing.conformance.suite import run_suite
from pageport_cpu.instruction_sets import available_sets
from pageport_cpu.plugin import CpuBackend


@pytest.fixture(scope="session")
def backend() -> type[CpuBackend]:
    return CpuBackend


@pytest.fixture(scope="session")
def backend_options() -> Mapping[str, str]:
    return {}


@pytest.fixture(scope="session")
def conformance_seed() -> int:
    """Return the same seed in every run; below, in the full tier, seeds are fresh."""
    return 2026


@pytest.mark.full
@pytest.mark.parametrize("kernels", [*(target.name for target in available_sets()), "none"])
def test_every_way_to_compute_passes(kernels: str) -> None:
    context = Context(CpuBackend, options={"kernels": kernels}, seed=secrets.randbelow(2**31))
    outcomes = run_suite(context, [level for level in Level if level < Level.FAULTS])
    context.close()
    failed = [f"{o.name}, seed {context.seed}: {o.message}" for o in outcomes if o.status is Status.FAILED]
    assert not failed, "\n".join(failed)
