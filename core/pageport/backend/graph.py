"""``Graph``: work that a device recorded once and repeats without being told op by op."""

from abc import ABC, abstractmethod
from typing import ClassVar


class Graph(ABC):
    """What ``Device.capture`` returns; nobody closes it, so it frees what it holds when the last reference goes."""

    # Has capturing done the work already? The first replay is then left out.
    has_run: ClassVar[bool] = False

    @abstractmethod
    def replay(self) -> None:
        """Do what the captured function would do with what its buffers hold now."""
