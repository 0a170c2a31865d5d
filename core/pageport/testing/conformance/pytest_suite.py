"""The suite as pytest tests: one a level.

A test module of a backend is this import and two fixtures of session scope::

    from pageport.testing.conformance.pytest_suite import *

    @pytest.fixture(scope="session")
    def backend(): return MyBackend

    @pytest.fixture(scope="session")
    def backend_options(): return {}

Inputs are random, by a fresh seed that stands in each failure. A third fixture, ``conformance_seed``, fixes it.
"""

import secrets
from collections.abc import Iterator, Mapping

import pytest

from pageport.backend.interface import Backend
from pageport.testing.conformance.card import ScoreCard
from pageport.testing.conformance.check import Level
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.suite import run_suite

__all__ = ["conformance_context", "conformance_seed", "test_conformance"]


@pytest.fixture(scope="session")
def conformance_seed() -> int:
    return secrets.randbelow(2**31)


@pytest.fixture(scope="session")
def conformance_context(
    backend: type[Backend], backend_options: Mapping[str, str], conformance_seed: int
) -> Iterator[Context]:
    """Open device 0 once for all levels."""
    context = Context(backend, options=backend_options, seed=conformance_seed)
    yield context
    context.close()


@pytest.mark.parametrize("level", [pytest.param(level, id=level.name.lower()) for level in Level])
def test_conformance(conformance_context: Context, level: Level) -> None:
    context = conformance_context
    card = ScoreCard(
        name=context.backend.name,
        seed=context.seed,
        outcomes=run_suite(context, [level]),
        ordinal=context.ordinal,
        options=context.options,
    )
    if card.failures:
        pytest.fail(f"{card.verdict}\n{card.failure_report()}", pytrace=False)
