"""Ranking: larger first, then lower index first, whichever way is taken."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pageport.backend.reference.ranking import ranked


def expected(values: Tensor, width: int) -> list[list[int]]:
    return [sorted(range(len(row)), key=lambda i, row=row: (-row[i], i))[:width] for row in values.tolist()]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.sampled_from([-1.5, -0.0, 0.0, 1e-40, 2.0, 3.25, float("-inf")]), min_size=12, max_size=12),
        min_size=1,
        max_size=3,
    ),
    st.integers(0, 12),
)
def test_ties_go_to_the_lower_index(rows: list[list[float]], width: int) -> None:
    values = torch.tensor(rows)
    result = ranked(values, width)
    assert result.indexes.tolist() == expected(values, width)
    assert torch.equal(result.values, values.gather(1, result.indexes))


@pytest.mark.parametrize("width", [1, 50, 256, 257, 1024, 3000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_width_is_a_prefix_of_the_sort(width: int, dtype: torch.dtype) -> None:
    values = torch.randn((4, 3000), generator=torch.Generator().manual_seed(1)).to(dtype).float()
    ordered, indexes = torch.sort(values, dim=-1, descending=True, stable=True)
    result = ranked(values, width)
    assert torch.equal(result.indexes, indexes[:, :width])
    assert torch.equal(result.values, ordered[:, :width])


def test_rows_of_nan_stay_in_range_and_leave_others_alone() -> None:
    values = torch.tensor([[float("nan")] * 600, [float(i) for i in range(600)]])
    for width in (5, 300, 600):
        result = ranked(values, width)
        assert result.indexes[1, :3].tolist() == [599, 598, 597]
        assert bool(((result.indexes >= 0) & (result.indexes < 600)).all())
