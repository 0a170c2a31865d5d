"""Steps are one graph a bucket, and what the vendor's compiler would not take is refused by name."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pageport.backend.program import Bucket
from pageport.backend.reference.static_choose import ChoiceTensors
from pageport.backend.reference.static_decoder import GraphInputs, GraphOutputs
from pageport.errors import UnsupportedFeature
from pageport_neuron.checking_compiler import CheckingCompiler
from pageport_neuron.compiler import NeuronCompiler

from .. import fake_torch_neuronx

BUCKET = Bucket(2, 2, 16)
INPUTS = GraphInputs(
    token_ids=torch.tensor([3, 5]),
    positions=torch.tensor([0, 1]),
    seq_lens=torch.tensor([1, 2], dtype=torch.int32),
    last_tokens=torch.tensor([0, 1]),
    block_tables=(),
    slot_mappings=(),
    choice=ChoiceTensors.greedy(2, 8, torch.device("cpu")),
)


def step_of(compute: Callable[[Any, torch.Tensor], torch.Tensor]) -> Any:
    def step(weights: Any, pools: Any, inputs: GraphInputs) -> GraphOutputs:
        result = compute(weights, inputs.positions)
        return GraphOutputs(result, result, inputs.token_ids, inputs.choice.temperatures)

    return step


def test_a_step_becomes_one_graph_that_takes_other_weights_and_inputs():
    compiler = CheckingCompiler(allows_float64=False)
    step = compiler.compile(step_of(lambda weight, x: x @ weight), BUCKET, torch.eye(2).long(), (), INPUTS)
    other = step(torch.tensor([[1, 2], [3, 4]]), (), INPUTS._replace(positions=torch.tensor([5, 7])))
    assert other.hidden.tolist() == [26, 38]
    assert [(done.bucket, done.num_ops > 0) for done in compiler.compilations] == [(BUCKET, True)]


def branches(_weights, x):
    return x + 1 if x.sum() > 3 else x


def reads_a_number(_weights, x):
    return x * int(x[1].item())


def speaks(_weights, x):
    print(x)
    return x + 1


@pytest.mark.parametrize(
    ("compute", "words"),
    [
        (branches, "Data-dependent branching"),
        (reads_a_number, "_local_scalar_dense.* not among the ops"),
        (speaks, "Failed to trace builtin"),
        (lambda _weights, x: x.nonzero(), "nonzero"),
        (lambda _weights, x: torch.special.bessel_j0(x.float()), "special_bessel_j0.* not among the ops"),
        (lambda _weights, x: x.double() + 1, "float64"),
    ],
)
def test_what_cannot_be_compiled_is_refused(compute, words):
    with pytest.raises(UnsupportedFeature, match=f"decode_2_of_16 cannot be compiled: .*({words})"):
        CheckingCompiler(allows_float64=False).compile(step_of(compute), BUCKET, None, (), INPUTS)


def test_drawing_may_use_float64():
    compiler = CheckingCompiler(allows_float64=True)
    compiler.compile(step_of(lambda _weights, x: x.double() + 1), BUCKET, None, (), INPUTS)
    assert len(compiler.compilations) == 1


def test_more_buckets_than_torch_recompiles_one_function_are_one_graph_each():
    step = step_of(lambda _weights, x: x + 1)
    with fake_torch_neuronx.installed() as vendor:
        compiler = NeuronCompiler()
        for size in range(1, 11):
            inputs = INPUTS._replace(positions=torch.arange(size))
            compiled = compiler.compile(step, Bucket(1, size, 16), None, (), inputs)
            assert compiled(None, (), inputs).hidden.tolist() == list(range(1, size + 1))
    assert vendor.backend.num_graphs == len(compiler.compilations) == 10
