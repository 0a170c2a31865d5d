"""Level 2: what the cache keeps, and what becomes of weights."""

from collections.abc import Iterator

from pageport.testing.conformance.check import Check
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.kv_checks import kv_checks
from pageport.testing.conformance.quantised_weights import quantisation_checks
from pageport.testing.conformance.weight_checks import weight_checks


def checks(context: Context) -> Iterator[Check]:
    """Yield the checks of the cache, of weights as they are stored, and of those quantised while loading."""
    yield from kv_checks(context)
    yield from weight_checks(context)
    yield from quantisation_checks(context)
