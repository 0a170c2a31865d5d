"""Compiled programs with one fault each: in what fills a step up, in whose numbers are used, in when they compile."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pageport.backend.decoder_weights import DecoderWeights
from pageport.backend.description import DecoderDescription
from pageport.backend.program import Bucket, ModelProgram, ProgramOutput, ProgramStep
from pageport.backend.reference.static_choose import ChoiceTensors
from pageport.backend.reference.static_decoder import GraphInputs, GraphOutputs, StaticGraph
from pageport.testing.conformance import Level
from pageport.testing.static_backend import StaticBackend
from pageport.testing.static_device import StaticDevice


class CompilesLate(StaticDevice):
    """Leaves every shape to its first step."""

    def build_model(
        self, description: DecoderDescription, weights: DecoderWeights, pools: Sequence[Any], buckets: Sequence[Bucket]
    ) -> ModelProgram:
        return Lazy(super().build_model(description, weights, pools, buckets))


class Lazy(ModelProgram):
    def __init__(self, program: ModelProgram) -> None:
        self._program = program

    def compile(self, bucket: Bucket) -> None:
        pass

    def step(self, step: ProgramStep) -> ProgramOutput:
        self._program.compile(step.bucket)
        return self._program.step(step)


class CompilesInItsFirstStep(StaticDevice):
    """Takes a shape in before the first step, and its time when the shape is needed."""

    def build_model(
        self, description: DecoderDescription, weights: DecoderWeights, pools: Sequence[Any], buckets: Sequence[Bucket]
    ) -> ModelProgram:
        return SlowAtFirst(super().build_model(description, weights, pools, buckets))


class SlowAtFirst(ModelProgram):
    def __init__(self, program: ModelProgram) -> None:
        self._program = program
        self._seen: set[Bucket] = set()

    def compile(self, bucket: Bucket) -> None:
        self._program.compile(bucket)

    def step(self, step: ProgramStep) -> ProgramOutput:
        if step.bucket not in self._seen:
            self._seen.add(step.bucket)
            time.sleep(1.0)
        return self._program.step(step)


class WritesPaddingToTheLastBlock(StaticDevice):
    """Counts slot -1 from the end of the blocks that requests may have."""

    def write_kv(self, pool: Any, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor, params: Any) -> None:
        last = (pool.key.shape[1] - 1) * pool.spec.block_size - 1
        super().write_kv(pool, layer, key, value, torch.where(slot_mapping < 0, last, slot_mapping), params)


class WrongInputs(StaticDevice):
    """Computes a step from inputs that a subclass spoils."""

    def compile_graph(self, graph: StaticGraph, bucket: Bucket) -> StaticGraph:
        return lambda inputs: graph(self.spoil(inputs, bucket))

    def spoil(self, inputs: GraphInputs, bucket: Bucket) -> GraphInputs:
        return inputs


class ReadsTheNullBlock(WrongInputs):
    """Weighs what lies behind a sequence with zero, instead of leaving it out."""

    def spoil(self, inputs: GraphInputs, bucket: Bucket) -> GraphInputs:
        return inputs._replace(seq_lens=torch.full_like(inputs.seq_lens, bucket.context))


class TakesTheLastPlaceOfTheBucket(WrongInputs):
    def spoil(self, inputs: GraphInputs, bucket: Bucket) -> GraphInputs:
        last = torch.arange(bucket.requests) + (bucket.tokens - bucket.requests)
        return inputs._replace(last_tokens=last)


class MixesUpRequests(WrongInputs):
    """Takes the requests from the other end, as far as none is padding."""

    def spoil(self, inputs: GraphInputs, bucket: Bucket) -> GraphInputs:
        others = inputs.last_tokens.amax() - inputs.last_tokens
        return inputs._replace(last_tokens=others if bucket.requests > 1 else inputs.last_tokens)


class ChoosesWithParametersOfOthers(WrongInputs):
    def spoil(self, inputs: GraphInputs, bucket: Bucket) -> GraphInputs:
        moved = (torch.cat((values[1:], values[:1])) for values in inputs.choice)
        return inputs._replace(choice=ChoiceTensors(*moved))


class ForgetsSeeds(WrongInputs):
    def spoil(self, inputs: GraphInputs, bucket: Bucket) -> GraphInputs:
        return inputs._replace(choice=inputs.choice._replace(seeds=torch.zeros_like(inputs.choice.seeds)))


class AnswersInOnePlace(StaticDevice):
    """Puts the outputs of a shape where those of its last step were."""

    def compile_graph(self, graph: StaticGraph, bucket: Bucket) -> StaticGraph:
        kept: list[GraphOutputs] = []

        def run(inputs: GraphInputs) -> GraphOutputs:
            outputs = graph(inputs)
            if not kept:
                kept.append(GraphOutputs(*(torch.empty_like(output) for output in outputs)))
            for place, output in zip(kept[0], outputs, strict=True):
                place.copy_(output)
            return kept[0]

        return run


class NeedsAnUndeclaredOp(WrongInputs):
    def spoil(self, inputs: GraphInputs, bucket: Bucket) -> GraphInputs:
        return inputs._replace(token_ids=inputs.token_ids.roll(0))


class LooksAtTheBatch(WrongInputs):
    """Skips what fills up where there is none, which no compiled graph can."""

    def spoil(self, inputs: GraphInputs, bucket: Bucket) -> GraphInputs:
        is_full = int(inputs.seq_lens.amin()) > 0
        return inputs if is_full else inputs._replace(positions=inputs.positions.clamp(min=0))


def backend_of(device: type[StaticDevice]) -> type[StaticBackend]:
    class WrongBackend(StaticBackend):
        def open(self, ordinal: int, options: Any, rank: Any = None) -> StaticDevice:
            return device(token_buckets=(64,), request_buckets=(4,))

    return WrongBackend


WRONG = [
    (name, backend_of(device), Level.ENGINE, words)
    for name, device, words in (
        ("compiles late", CompilesLate, "is to be compiled after the first step"),
        ("compiles in its first step", CompilesInItsFirstStep, "Is it compiled then?"),
        ("writes padding to the last block", WritesPaddingToTheLastBlock, "which no request has: tokens with slot -1"),
        ("reads the null block", ReadsTheNullBlock, "gets NaN: block -1"),
        ("takes the last place of the bucket", TakesTheLastPlaceOfTheBucket, "a token that fills the step up"),
        ("mixes up requests", MixesUpRequests, "gets the logits of request"),
        ("chooses with parameters of others", ChoosesWithParametersOfOthers, "the one with the parameters of request"),
        ("forgets seeds", ForgetsSeeds, "the one that Device.sample chooses"),
        ("answers in one place", AnswersInOnePlace, "does a later step change"),
        ("needs an undeclared op", NeedsAnUndeclaredOp, "aten.roll in a step of"),
        ("looks at the batch", LooksAtTheBatch, "__int__() in a step of"),
    )
]
