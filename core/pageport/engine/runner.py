"""``Runner``: what the engine drives, a model on a device or a stand-in without tensors."""

from abc import ABC, abstractmethod

from pageport.scheduling.batch import Batch, StepResult


class PendingStep(ABC):
    """A submitted step."""

    @abstractmethod
    def result(self) -> StepResult:
        """Wait for the step and return what it produced."""


class Runner(ABC):
    """Runs steps in the order they are submitted."""

    @abstractmethod
    def submit(self, batch: Batch) -> PendingStep:
        """Start one step."""

    def close(self) -> None:  # noqa: B027 - a runner may own nothing
        """Give device memory back."""
