"""``Graph``: work that a device recorded once and repeats without being told op by op."""

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

from pageport.errors import UnsupportedFeature


class StepSize(NamedTuple):
    """How many rows the tensors of a step have: one a token, a request, or a token whose hidden state is wanted."""

    tokens: int
    requests: int
    wanted: int


class Graph(ABC):
    """What ``Device.capture`` returns; nobody closes it, so it frees what it holds when the last reference goes."""

    # Has capturing done the work already? The first replay is then left out.
    has_run: ClassVar[bool] = False

    @abstractmethod
    def replay(self) -> None:
        """Do what the captured function would do with what its buffers hold now."""

    def resize(self, captured: StepSize, size: StepSize) -> None:
        """Let replays take ``size`` in place of ``captured``, the size of the captured step.

        Only asked for with ``Capabilities.graphs_resize``. Every tensor begins where it did and its rows lie as far
        apart as they did; the captured function would have done the same, with other numbers of rows.

        Raises:
            UnsupportedFeature: the device has no such graphs.
        """
        raise UnsupportedFeature(f"{type(self).__qualname__} cannot be resized.")
