import pytest
import torch

from pageport.models.workspace import Workspace


@pytest.fixture
def workspace():
    return Workspace(torch.float32, torch.device("cpu"))


def test_shapes_share_a_name(workspace):
    workspace.reserve("wide", 12)
    assert workspace.view("wide", 3, 4).data_ptr() == workspace.view("wide", 2, 5).data_ptr()


def test_reserving_less_keeps_the_buffer(workspace):
    workspace.reserve("wide", 12)
    address = workspace.view("wide", 12).data_ptr()
    workspace.reserve("wide", 8)
    assert (workspace.view("wide", 12).data_ptr(), workspace.num_bytes) == (address, 48)


def test_too_large_a_view_is_an_assertion(workspace):
    workspace.reserve("wide", 12)
    with pytest.raises(AssertionError, match="wide"):
        workspace.view("wide", 13)


def test_growing_rows_go_to_powers_of_two(workspace):
    sizes = []
    for rows in (1, 3, 4, 5):
        assert workspace.growing_view("logits", rows, 10).shape == (rows, 10)
        sizes.append(workspace.num_bytes)
    assert sizes == [40, 160, 160, 320]
