"""The conformance suite on a simulated device: the kernel runs in JAX's interpreter."""

from collections.abc import Mapping

import pytest
from pageport_tpu.plugin import TpuBackend

from pageport.testing.conformance.pytest_suite import *  # noqa: F403 - its tests and fixtures


@pytest.fixture(scope="session")
def backend() -> type[TpuBackend]:
    return TpuBackend


@pytest.fixture(scope="session")
def backend_options() -> Mapping[str, str]:
    return {}
