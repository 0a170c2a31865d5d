"""``ChoiceBatch`` and ``Choice``: what choosing one token a row needs and gives, as ``Device.sample`` sees it."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from jaxtyping import Float32, Int64
from torch import Tensor

Rows = npt.NDArray[np.int64]  # indexes of rows of the logits, ascending


@dataclass(frozen=True, kw_only=True)
class ChoiceBatch:
    """Parameters by row of the logits, on the device; which rows need what, on the host.

    The token being chosen has output position ``positions[k]`` (0: the first after the prompt). A 64-bit seed is stored
    as the int64 of the same bits.
    """

    temperatures: Float32[Tensor, "rows"]  # 0: the likeliest token
    top_p: Float32[Tensor, "rows"]  # 1: off
    min_p: Float32[Tensor, "rows"]  # 0: off
    top_k: Int64[Tensor, "rows"]  # the vocabulary's size: off
    seeds: Int64[Tensor, "rows"]
    positions: Int64[Tensor, "rows"]
    # Rows whose temperature is not 0, without and with any of top_k, top_p, min_p.
    plain_rows: Rows
    filtered_rows: Rows

    def select(self, rows: Int64[Tensor, "n"]) -> "ChoiceBatch":
        """Return the batch of some of its rows, ascending, which may lie on the device."""
        chosen = rows.cpu().numpy()
        return ChoiceBatch(
            temperatures=self.temperatures[rows],
            top_p=self.top_p[rows],
            min_p=self.min_p[rows],
            top_k=self.top_k[rows],
            seeds=self.seeds[rows],
            positions=self.positions[rows],
            plain_rows=np.flatnonzero(np.isin(chosen, self.plain_rows)),
            filtered_rows=np.flatnonzero(np.isin(chosen, self.filtered_rows)),
        )


class Choice(NamedTuple):
    """One token a row, and the largest logits: NaN in a row with NaN.

    Where one is not finite any id of the vocabulary will do.
    """

    token_ids: Int64[Tensor, "rows"]
    peaks: Float32[Tensor, "rows"]
