import pytest
from pageport_example.plugin import ExampleBackend

from pageport.testing.conformance.pytest_suite import *  # noqa: F403 - its tests and fixtures


@pytest.fixture(scope="session")
def backend():
    return ExampleBackend


@pytest.fixture(scope="session")
def backend_options():
    return {}
