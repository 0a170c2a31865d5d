"""``Compiler``: turns one bucket's step into a program through ``torch.compile``, as the vendor documents it."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

from pageport.backend.decoder_weights import DecoderWeights
from pageport.backend.program import Bucket, Compilation
from pageport.backend.reference.static_decoder import GraphInputs, GraphOutputs

# (weights, pools, the step's tensors) → what the step gives. Weights and pools are arguments, so that a program is one
# of shapes and not of one engine's tensors.
Step = Callable[[DecoderWeights, tuple[Any, ...], GraphInputs], GraphOutputs]


class Compiler(ABC):
    """Compiles steps, each as exactly one graph of fixed shapes."""

    def __init__(self) -> None:
        self.compilations: list[Compilation] = []

    @property
    @abstractmethod
    def backend(self) -> str | Callable[..., Any]:
        """What ``torch.compile`` takes as its backend."""

    def compile(
        self, step: Step, bucket: Bucket, weights: DecoderWeights, pools: tuple[Any, ...], inputs: GraphInputs
    ) -> Step:
        """Compile a bucket's step for the shapes of these tensors, which it is run with once."""
        compiled: Step = torch.compile(
            _with_code_of_its_own(step, name_of(bucket)),
            backend=self.backend,
            fullgraph=True,
            dynamic=False,
            options={"guard_filter_fn": _no_guards},
        )
        start = time.perf_counter()
        compiled(weights, pools, inputs)
        seconds = time.perf_counter() - start
        self.compilations.append(Compilation(bucket=bucket, seconds=seconds, num_ops=self.num_ops))
        return compiled

    @property
    def num_ops(self) -> int | None:
        """How many ops the graph has that was compiled last, where somebody counted."""
        return None


class NeuronCompiler(Compiler):
    """The vendor's compiler; programs come from its cache on disk where they are there already."""

    @property
    def backend(self) -> str:
        return "neuron"


def name_of(bucket: Bucket) -> str:
    """Return a name for a bucket's graph, as code may have it."""
    kind = "decode" if bucket.requests == bucket.tokens else "prompt"
    return f"{kind}_{bucket.tokens}_of_{bucket.context}"


def _with_code_of_its_own(step: Step, name: str) -> Step:
    """Copy a function, code included: torch counts the compilations of a code object and stops at a few."""
    assert isinstance(step, FunctionType)
    code = step.__code__.replace(co_name=name)
    return FunctionType(code, step.__globals__, name, step.__defaults__, step.__closure__)


def _no_guards(guards: list[Any]) -> list[bool]:
    """Drop every check that torch would make of hundreds of weights in each step: the bucket fixes the shapes."""
    return [False] * len(guards)
