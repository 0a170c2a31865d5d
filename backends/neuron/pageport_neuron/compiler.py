"""``Compiler``: turns one bucket's step into a program through ``torch.compile``, as the vendor documents it."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch

from pageport.backend.decoder_weights import DecoderWeights
from pageport.backend.reference.static_decoder import GraphInputs, GraphOutputs

# (weights, pools, the step's tensors) → what the step gives. Weights and pools are arguments, so that a program is one
# of shapes and not of one engine's tensors.
Step = Callable[[DecoderWeights, tuple[Any, ...], GraphInputs], GraphOutputs]


@dataclass(frozen=True, kw_only=True)
class Compilation:
    """What came of compiling one bucket; ``num_ops`` is None where nobody counted."""

    name: str
    seconds: float
    num_ops: int | None = None


class Compiler(ABC):
    """Compiles steps, each as exactly one graph of fixed shapes."""

    def __init__(self) -> None:
        self.compilations: list[Compilation] = []

    @property
    @abstractmethod
    def backend(self) -> str | Callable[..., Any]:
        """What ``torch.compile`` takes as its backend."""

    def compile(
        self, step: Step, name: str, weights: DecoderWeights, pools: tuple[Any, ...], inputs: GraphInputs
    ) -> Step:
        """Compile a step for the shapes of these tensors, which it is run with once.

        Args:
            name: of the bucket, for messages.
        """
        compiled: Step = torch.compile(
            _with_code_of_its_own(step, name),
            backend=self.backend,
            fullgraph=True,
            dynamic=False,
            options={"guard_filter_fn": _no_guards},
        )
        start = time.perf_counter()
        compiled(weights, pools, inputs)
        self.compilations.append(self._compilation(name, time.perf_counter() - start))
        return compiled

    def _compilation(self, name: str, seconds: float) -> Compilation:
        return Compilation(name=name, seconds=seconds)


class NeuronCompiler(Compiler):
    """The vendor's compiler; programs come from its cache on disk where they are there already."""

    @property
    def backend(self) -> str:
        return "neuron"


def _with_code_of_its_own(step: Step, name: str) -> Step:
    """Copy a function, code included: torch counts the compilations of a code object and stops at a few."""
    assert isinstance(step, FunctionType)
    code = step.__code__.replace(co_name=name)
    return FunctionType(code, step.__globals__, name, step.__defaults__, step.__closure__)


def _no_guards(guards: list[Any]) -> list[bool]:
    """Drop every check that torch would make of hundreds of weights in each step: the bucket fixes the shapes."""
    return [False] * len(guards)
