"""The compiled kernels, for every instruction set this machine runs, with one thread and with two."""

import os
import shlex
from collections.abc import Iterator

import pytest

from pageport_cpu.compiler import Kernels, compile_library, find_compiler
from pageport_cpu.instruction_sets import InstructionSet, available_sets
from pageport_cpu.library import BUILT, Library


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that run kernels: `make sanitize` runs them again, with checks compiled in."""
    for item in items:
        if {"every_library", "thread_pool"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("kernels")


@pytest.fixture(scope="session")
def kernel_flags() -> tuple[str, ...]:
    """Return more flags to compile with."""
    flags = tuple(shlex.split(os.environ.get("PAGEPORT_TEST_KERNEL_FLAGS", "")))
    if flags:
        os.environ.pop("LD_PRELOAD", None)  # this process has what it names; compilers must run without
    return flags


@pytest.fixture(scope="session")
def compiler() -> str:
    found = find_compiler()
    assert found is not None, "these tests need a C++ compiler"
    return found


@pytest.fixture(scope="session", params=available_sets(), ids=lambda target: target.name)
def every_library(request: pytest.FixtureRequest, compiler: str, kernel_flags: tuple[str, ...]) -> Library:
    target: InstructionSet = request.param
    built = BUILT / "checked" if kernel_flags else BUILT
    return Library(compile_library(target, built, compiler, Kernels(extra_flags=kernel_flags)), target.name)


@pytest.fixture
def library(every_library: Library) -> Iterator[Library]:
    """Kernels that run on two threads."""
    every_library.set_num_threads(2)
    yield every_library
    every_library.set_num_threads(1)
