"""``NeuronProgram``: a decoder as one compiled graph a bucket."""

from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from pageport.backend.choice import Choice, ChoiceBatch
from pageport.backend.decoder_weights import DecoderWeights
from pageport.backend.description import DecoderDescription
from pageport.backend.program import Bucket, ProgramOutput, ProgramStep
from pageport.backend.reference.choose import choose_tokens
from pageport.backend.reference.static_decoder import GraphInputs, GraphOutputs, StaticProgram, padding_inputs
from pageport.errors import BackendError
from pageport_neuron.compiler import Step

if TYPE_CHECKING:
    from pageport_neuron.device import NeuronDevice

Shapes = tuple[tuple[torch.Size, torch.dtype], ...]


class GraphKey(NamedTuple):
    """What decides a compiled graph."""

    description: DecoderDescription
    bucket: Bucket
    shapes: Shapes  # of weights and pools
    same: tuple[int, ...]  # for each of these tensors, where it is first: a tied head is the embedding itself


class NeuronProgram(StaticProgram):
    """Draws tokens on the device or on the host, as the device was opened."""

    def __init__(
        self, device: "NeuronDevice", description: DecoderDescription, weights: DecoderWeights, pools: Sequence[Any]
    ) -> None:
        self._neuron = device
        self._operands = (weights, tuple(pools))
        super().__init__(device, partial(device.step_of(description), *self._operands), description)

    def compile(self, bucket: Bucket) -> None:
        padding = padding_inputs(self._description, bucket, self._neuron.torch_device)
        operands, inputs = ([id(tensor) for tensor in _tensors(given)] for given in (self._operands, padding))
        assert len(set(inputs)) == len(inputs), "a graph takes what is one tensor now for one tensor in every step"
        same = tuple(operands.index(tensor) for tensor in operands)
        key = GraphKey(self._description, bucket, shapes_of(self._operands), same)
        graph = self._neuron.compiled(key, *self._operands, padding)
        self._graphs[bucket] = partial(self._run, graph, shapes_of(padding), bucket)

    def step(self, step: ProgramStep) -> ProgramOutput:
        """Compute a step.

        Raises:
            BackendError: its bucket was not compiled, or a tensor has another shape than its bucket.
        """
        if step.bucket not in self._graphs:
            raise BackendError(f"{step.bucket} was not compiled before the first step.")
        output = super().step(step)
        choice = step.choice
        if choice is not None and not self._neuron.draws and (choice.plain_rows.size or choice.filtered_rows.size):
            output.choice = draw_on_host(output.logits(), choice)
        return output

    def _run(self, graph: Step, shapes: Shapes, bucket: Bucket, inputs: GraphInputs) -> GraphOutputs:
        """Run a graph, which takes the shapes of its inputs for granted."""
        for given, expected in zip(shapes_of(inputs), shapes, strict=True):
            if given != expected:
                raise BackendError(f"A step of {bucket} has {_told(*given)} where {_told(*expected)} was compiled.")
        return graph(*self._operands, inputs)


def draw_on_host(logits: Tensor, batch: ChoiceBatch) -> Choice:
    """Choose tokens as the reference does, where there are 64-bit numbers."""
    on_host = ChoiceBatch(
        temperatures=batch.temperatures.cpu(),
        top_p=batch.top_p.cpu(),
        min_p=batch.min_p.cpu(),
        top_k=batch.top_k.cpu(),
        seeds=batch.seeds.cpu(),
        positions=batch.positions.cpu(),
        plain_rows=batch.plain_rows,
        filtered_rows=batch.filtered_rows,
    )
    choice = choose_tokens(logits.cpu(), on_host)
    return Choice(choice.token_ids.to(logits.device), choice.peaks.to(logits.device))


def shapes_of(value: object) -> Shapes:
    """Return shape and dtype of every tensor in a structure, in order."""
    return tuple((tensor.shape, tensor.dtype) for tensor in _tensors(value))


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif is_dataclass(value):
        for field in fields(value):
            yield from _tensors(getattr(value, field.name))
    elif isinstance(value, tuple):
        for part in value:
            yield from _tensors(part)


def _told(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
