"""Kernels run through Triton's interpreter here (``backends/conftest.py``)."""

from dataclasses import replace

import pytest

from pageport_triton.configurations import INTERPRETER, Configuration, DecodeTile, PrefillTile, WriteConfiguration


@pytest.fixture
def small_tiles() -> Configuration:
    """Return tiles and splits so small that a few tokens need several of them."""
    return replace(
        INTERPRETER,
        decode=dict.fromkeys(INTERPRETER.decode, DecodeTile(16, 1, 1)),
        prefill=dict.fromkeys(INTERPRETER.prefill, PrefillTile(16, 16, 1, 1)),
        split=replace(INTERPRETER.split, wanted_programs=32, least_tiles=1),
        write=WriteConfiguration(32, 1),
    )
