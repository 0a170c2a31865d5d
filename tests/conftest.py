"""What holds for every test: one thread a process, and shapes in the interface's signatures are checked."""

import os
from collections.abc import Iterator

import jaxtyping
import pytest
from jaxtyping import install_import_hook

# Tensors are tiny here: threads would wait for each other longer than they compute.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Before anything imports it; the hook stays for the whole session.
install_import_hook("pageport.backend", "beartype.beartype")


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """Do not check the shapes of signatures: tests of ops and models do, and long runs would mostly do only that."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
