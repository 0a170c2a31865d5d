"""A recorded step takes other numbers of rows."""

import pytest
import torch

from pageport.backend.graph import StepSize
from pageport_cpu import norms, row_ops
from pageport_cpu.tape_graph import TapeGraph

FEATURES = 40


@pytest.fixture
def buffers():
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(12, FEATURES, generator=generator) for _ in range(5)]


def _run(library, buffers, rows, size):
    """Norm every token, then double the wanted ones."""
    weight, x, normed, picked, doubled = buffers
    tokens, wanted = size.tokens, size.wanted
    norms.rms_norm(library, x[:tokens], None, weight[0], 1e-5, normed[:tokens])
    row_ops.gather_rows(library, normed[:tokens], rows[:wanted], picked[:wanted])
    row_ops.scale(library, picked[:wanted], 2.0, doubled[:wanted])


@pytest.mark.parametrize("size", [StepSize(5, 2, 3), StepSize(12, 4, 1), StepSize(1, 1, 0), StepSize(12, 1, 11)])
def test_a_resized_tape_does_what_ops_of_that_size_do(library, buffers, size):
    rows, captured = torch.arange(12), StepSize(tokens=7, requests=2, wanted=4)
    with library.record() as tape:
        _run(library, buffers, rows, captured)
    rows.copy_(torch.arange(12).flip(0).remainder(size.tokens))
    buffers[1].normal_()
    expected = [buffer.clone() for buffer in buffers]
    _run(library, expected, rows, size)
    graph = TapeGraph(tape)
    graph.resize(captured, captured)
    graph.resize(captured, size)
    graph.replay()
    assert all(torch.equal(buffer, other) for buffer, other in zip(buffers, expected, strict=True))


def test_rows_that_belong_to_no_step_are_noticed(library, buffers):
    with library.record() as tape:
        row_ops.scale(library, buffers[0][:3], 2.0, buffers[1][:3])
    with pytest.raises(AssertionError, match="scale was recorded with 3 rows"):
        TapeGraph(tape).resize(StepSize(4, 1, 2), StepSize(5, 1, 2))
