"""What a stored tensor goes through before the model gets it: its shape is checked, its rows are put in order."""

import torch
from torch import Tensor

from pageport.errors import CorruptWeights
from pageport.models.spec import RowOrder


def check_shape(source: str, stored: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """Refuse a tensor of another shape than the model's config implies.

    Raises:
        CorruptWeights: names ``source`` and both shapes.
    """
    if stored != expected:
        raise CorruptWeights(
            f"{source} is stored as {list(stored)} where the config asks for {list(expected)}. "
            "The config does not belong to these weights; fetch both again."
        )


def reorder_rows(stored: Tensor, *orders: RowOrder | None) -> Tensor:
    """Apply row orders one after the other: a copy, unless together they change nothing."""
    unchanged = torch.arange(stored.shape[0])
    index = unchanged
    for order in orders:
        if order is not None:
            index = index.view(order.shape).permute(order.axes).reshape(-1)
    return stored if torch.equal(index, unchanged) else stored.index_select(0, index)
