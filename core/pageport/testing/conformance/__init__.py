"""The conformance suite: what says whether a backend is right."""

from pageport.testing.conformance.check import Check, Level, Outcome, Status
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.suite import run_suite

__all__ = ["Check", "Context", "Level", "Outcome", "Status", "run_suite"]
