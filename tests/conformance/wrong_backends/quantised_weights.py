"""Devices that quantise weights while loading: one that is right, and ones that are not."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from pageport.backend import Backend, Capabilities, StoredTensor, WeightSpec
from pageport.backend.reference.weights import ReferenceWeight
from pageport.testing.conformance import Level
from pageport_cpu.device import CpuDevice
from pageport_cpu.plugin import CpuBackend

GROUP = 32


def backend_with(device: Callable[[], CpuDevice]) -> type[Backend]:
    """Return a backend whose device is of this class."""
    return type("WrongBackend", (CpuBackend,), {"open": lambda self, ordinal, options, rank=None: device()})


class Packed(NamedTuple):
    """int8: ``numbers`` int8 with a scale for each row. int4: pairs of nibbles with a scale for each 32 weights."""

    numbers: Tensor
    scale: Tensor  # float16
    spec: WeightSpec
    in_features: int


class Quantises(CpuDevice):
    """Nothing wrong with it."""

    steps: ClassVar[Mapping[str, int]] = {"int8": 127, "int4": 7}

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, quantisations=("int8", "int4"), quantises_activations=True)

    def prepare_weight(self, spec: WeightSpec, parts: Sequence[StoredTensor]) -> Any:
        if spec.quantisation is None:
            return super().prepare_weight(spec, parts)
        dense = super().prepare_weight(replace(spec, quantisation=None, compute_dtype="float32"), parts).dense
        in_features = dense.shape[1]
        groups = dense[:, None]
        if spec.quantisation == "int4":
            groups = functional.pad(dense, (0, -in_features % GROUP)).unflatten(1, (-1, GROUP))
        largest = self.steps[spec.quantisation]
        scale = (groups.abs().amax(2, keepdim=True) / largest).half()
        numbers = self.rounded(groups / scale.float().where(scale != 0, 1)).clamp(-largest, largest).to(torch.int8)
        if spec.quantisation == "int4":
            numbers = (numbers[..., ::2] + 8 | numbers[..., 1::2] + 8 << 4).view(torch.uint8)
        return Packed(numbers, scale, spec, in_features)

    def rounded(self, numbers: Tensor) -> Tensor:
        return numbers.round()

    def dense(self, weight: Packed) -> Tensor:
        numbers = weight.numbers
        if weight.spec.quantisation == "int4":
            numbers = torch.stack(((numbers & 15).to(torch.int8) - 8, (numbers >> 4).to(torch.int8) - 8), -1).flatten(2)
        dense = (numbers * weight.scale.float()).flatten(1)[:, : weight.in_features]
        return dense.to(getattr(torch, weight.spec.compute_dtype))

    def weight_bytes(self, weight: Any) -> int:
        return (
            weight.numbers.nbytes + weight.scale.nbytes if isinstance(weight, Packed) else super().weight_bytes(weight)
        )

    def linear(self, weight: Any, x: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        if not isinstance(weight, Packed):
            return super().linear(weight, x, bias, out)
        step = self.largest_activation(x.float()) / 127
        x = ((x / step).round() * step).to(x)
        return super().linear(ReferenceWeight(self.dense(weight)), x, bias, out)

    def largest_activation(self, x: Tensor) -> Tensor:
        return x.abs().amax(1, keepdim=True)

    def embed(self, weight: Any, token_ids: Tensor, out: Tensor | None = None) -> Tensor:
        if isinstance(weight, Packed):
            weight = ReferenceWeight(self.dense(weight))
        return super().embed(weight, token_ids, out)


class TakesAllForFourBits(Quantises):
    steps: ClassVar[Mapping[str, int]] = {"int8": 7, "int4": 7}


class CutsOff(Quantises):
    def rounded(self, numbers: Tensor) -> Tensor:
        return numbers.floor()


class MultipliesBySomethingElse(Quantises):
    """Gives each row the scale of its neighbour, in products alone."""

    def linear(self, weight: Any, x: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        if isinstance(weight, Packed):
            weight = weight._replace(scale=weight.scale.roll(1, 0))
        return super().linear(weight, x, bias, out)


class CountsAllAsFloats(Quantises):
    def weight_bytes(self, weight: Any) -> int:
        return 4 * weight.in_features * len(weight.scale)


class IgnoresQuantisation(CpuDevice):
    def prepare_weight(self, spec: WeightSpec, parts: Sequence[StoredTensor]) -> Any:
        return super().prepare_weight(replace(spec, quantisation=None), parts)


class ForgetsShards(Quantises):
    def prepare_weight(self, spec: WeightSpec, parts: Sequence[StoredTensor]) -> Any:
        if spec.quantisation is not None:
            spec = replace(spec, shard_rank=0)
        return super().prepare_weight(spec, parts)


class ScalesActivationsByTheBatch(Quantises):
    """Multiplies one row after the other, and rounds all by the largest activation of the step."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, compute_dtypes=("float32",), determinism="batch")

    def linear(self, weight: Any, x: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        if isinstance(weight, Packed):
            step = x.abs().amax() / 127
            x, weight = (x / step).round() * step, ReferenceWeight(self.dense(weight))
        rows = torch.cat([CpuDevice.linear(self, weight, row, bias) for row in x.split(1)])
        return rows if out is None else out.copy_(rows)


CORRECT = [("quantises", backend_with(Quantises), Level.KV_AND_WEIGHTS)]
WRONG = [
    *(
        (name, backend_with(device), Level.KV_AND_WEIGHTS, words)
        for name, device, words in [
            ("int8 of four bits", TakesAllForFourBits, "weights are far from what is stored"),
            ("cuts off", CutsOff, "are numbers cut off?"),
            ("multiplies by something else", MultipliesBySomethingElse, "compared with the numbers that embed gives"),
            ("counts all as floats", CountsAllAsFloats, "bytes a weight"),
            ("ignores a quantisation it does not do", IgnoresQuantisation, "which quantisations does not declare"),
            ("forgets shards of quantised weights", ForgetsShards, "rows of rank 1 of 2 quantised to int8"),
        ]
    ),
    (
        "scales activations by the batch",
        backend_with(ScalesActivationsByTheBatch),
        Level.DETERMINISM,
        "times a matrix (int8): alone",
    ),
]
