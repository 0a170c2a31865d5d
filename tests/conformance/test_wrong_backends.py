"""The suite catches what it is for: each deliberately wrong backend, at its level, with the cause in the message.

Modules of ``wrong_backends`` export ``WRONG``: (name, backend, level that must catch it, words of the message), and,
where they build on code of their own, ``CORRECT``: (name, backend, level) of what has no fault. That the CPU backend,
which the others are made of, passes, is tested in backends/cpu/tests.
"""

import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

from pageport.testing.conformance import Context, Level, Outcome, Status
from pageport.testing.conformance.suite import all_checks, run_check


def load(path: Path) -> ModuleType:
    name = f"wrong_backends_{path.stem}"
    spec = spec_from_file_location(name, path)
    module = module_from_spec(spec)
    # A level may look a backend's module up, or import it in another process.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


MODULES = [load(path) for path in sorted((Path(__file__).parent / "wrong_backends").glob("[a-z]*.py"))]
WRONG = [entry for module in MODULES for entry in module.WRONG]
CORRECT = [entry for module in MODULES for entry in getattr(module, "CORRECT", ())]


def failures(backend, level: Level) -> Iterator[Outcome]:
    context = Context(backend)
    try:
        for check in all_checks(context, [level]):
            outcome = run_check(context, check)
            if outcome.status is Status.FAILED:
                yield outcome
    finally:
        context.close()


@pytest.mark.parametrize(
    ("backend", "level", "words"), [entry[1:] for entry in WRONG], ids=[entry[0] for entry in WRONG]
)
def test_wrong_backend_is_caught_at_its_level_with_the_cause(backend, level, words):
    messages = []
    for outcome in failures(backend, level):
        messages.append(f"{outcome.name}: {outcome.message}")
        if words in outcome.message:
            return
    pytest.fail(f"No failure of level {level} says {words!r}, but:\n" + "\n".join(messages or ["nothing failed"]))


@pytest.mark.parametrize(("backend", "level"), [entry[1:] for entry in CORRECT], ids=[entry[0] for entry in CORRECT])
def test_what_the_wrong_backends_are_made_of_passes(backend, level):
    assert [f"{outcome.name}: {outcome.message}" for outcome in failures(backend, level)] == []
