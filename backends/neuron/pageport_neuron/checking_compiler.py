"""``CheckingCompiler``: compiles nothing, but refuses what the vendor's compiler does not take, and counts."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchDynamoException
from torch.fx import GraphModule, Node

from pageport.backend.decoder_weights import DecoderWeights
from pageport.backend.program import Bucket
from pageport.backend.reference.static_decoder import GraphInputs
from pageport.errors import UnsupportedFeature
from pageport_neuron.allowed_ops import ALLOWED_OPS
from pageport_neuron.compiler import Compiler, Step, name_of


class CheckingCompiler(Compiler):
    """Looks at each graph as the vendor's backend receives it, of ``aten`` ops, and then runs it op by op."""

    def __init__(self, *, allows_float64: bool) -> None:
        """Start counting.

        Args:
            allows_float64: drawing tokens needs it; the vendor's compiler makes float32 of it.
        """
        super().__init__()
        self._allows_float64 = allows_float64
        self._num_ops: list[int] = []  # of the graphs of the bucket that is being compiled
        # As the vendor's backend does: an argument that a graph writes to is written to in place.
        self._backend = aot_autograd(fw_compiler=self._take, keep_inference_input_mutations=True)

    @property
    def backend(self) -> Callable[..., Any]:
        return self._backend

    def compile(
        self, step: Step, bucket: Bucket, weights: DecoderWeights, pools: tuple[Any, ...], inputs: GraphInputs
    ) -> Step:
        """Compile and check.

        Raises:
            UnsupportedFeature: the step is not one graph of fixed shapes, or has an op that is not allowed.
        """
        self._num_ops = []
        try:
            compiled = super().compile(step, bucket, weights, pools, inputs)
        except TorchDynamoException as error:
            cause = str(getattr(error, "inner_exception", error)).strip().partition("\n")[0]
            raise UnsupportedFeature(f"{name_of(bucket)} cannot be compiled: {cause}") from error
        if len(self._num_ops) != 1:
            raise UnsupportedFeature(f"{name_of(bucket)} became {len(self._num_ops)} graphs instead of one.")
        return compiled

    @property
    def num_ops(self) -> int:
        return sum(self._num_ops)

    def _take(self, graph: GraphModule, _examples: Sequence[Any]) -> Callable[..., Any]:
        ops = [node for node in graph.graph.nodes if node.op == "call_function"]
        for node in graph.graph.nodes:
            self._check_results(node)
        for node in ops:
            _check_op(node)
        self._num_ops.append(len(ops))
        return graph

    def _check_results(self, node: Node) -> None:
        value = node.meta.get("val")
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if not isinstance(tensor, torch.Tensor):
                continue
            if not all(type(size) is int for size in tensor.shape):
                raise UnsupportedFeature(f"{node.name} has the shape {tuple(tensor.shape)}, which is not fixed.")
            if tensor.dtype == torch.float64 and not self._allows_float64:
                raise UnsupportedFeature(f"{node.name} is of float64, which the device does not have.")


def _check_op(node: Node) -> None:
    name = str(node.target)
    if name == "<built-in function getitem>":
        return
    packet = name.removeprefix("aten.").rpartition(".")[0]
    if not name.startswith("aten.") or packet not in ALLOWED_OPS:
        raise UnsupportedFeature(
            f"{name} is not among the ops that programs for Neuron consist of (pageport_neuron.allowed_ops)."
        )
