"""The CPU backend passes the conformance suite."""

from collections.abc import Mapping

import pytest

from pageport.testing.conformance.pytest_suite import *  # noqa: F403 - its tests and fixtures
from pageport_cpu.plugin import CpuBackend


@pytest.fixture(scope="session")
def backend() -> type[CpuBackend]:
    return CpuBackend


@pytest.fixture(scope="session")
def backend_options() -> Mapping[str, str]:
    return {}
