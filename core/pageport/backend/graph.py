"""``Graph``: work that a device recorded once and repeats without being told op by op."""

from abc import ABC, abstractmethod


class Graph(ABC):
    """What ``Device.capture`` returns; nobody closes it, so it frees what it holds when the last reference goes."""

    @abstractmethod
    def replay(self) -> None:
        """Do what the captured function would do with what its buffers hold now."""
