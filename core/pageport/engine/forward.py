"""``Forward``: computes a batch up to its logits, in one step of ops or in several of compiled programs."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from pageport.backend.choice import Choice
from pageport.sampling.batch import SamplingBatch
from pageport.scheduling.batch import Batch


class Computed(ABC):
    """What a batch gave, by its entries; to be read before the next batch is computed."""

    @property
    def choice(self) -> Choice | None:
        """The sampled tokens, aligned with ``Batch.sample_rows``, where the device chose them itself."""
        return None

    @abstractmethod
    def last_logits(self, entries: Sequence[int]) -> Tensor:
        """Return the logits behind the last token of each of these entries."""

    @abstractmethod
    def logits(self, entry: int, start: int, stop: int) -> Tensor:
        """Return the logits behind an entry's tokens ``start`` … ``stop - 1``, counted from its first of this step."""

    @abstractmethod
    def hidden(self, entry: int, start: int, stop: int) -> Tensor:
        """Return the final norm's output for these tokens."""


class Forward(ABC):
    """A model with its KV pools, up to the logits."""

    @abstractmethod
    def run(self, batch: Batch, history: Tensor, sampling: SamplingBatch | None) -> Computed:
        """Compute a batch whose blocks are in place.

        Args:
            history: the tokens of every row [rows, positions].
            sampling: how the samples of ``batch`` are chosen; None where there are none.
        """

    def close(self) -> None:  # noqa: B027 - may hold nothing
        """Give back what is held on the device, but for the pools."""


def lengths_after(batch: Batch) -> npt.NDArray[np.int64]:
    """Return how many tokens each entry has once the batch is computed."""
    return np.asarray(batch.starts, np.int64) + np.asarray(batch.counts, np.int64)
