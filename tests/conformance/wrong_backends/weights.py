"""Devices whose weights are wrong."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pageport.backend import Backend, Capabilities, StoredTensor, WeightSpec
from pageport.backend.reference.weights import ReferenceWeight
from pageport.testing.conformance import Level
from pageport_cpu.device import CpuDevice
from pageport_cpu.plugin import CpuBackend


def backend_with(device: Callable[[], CpuDevice]) -> type[Backend]:
    """Return a backend whose device is of this class."""
    return type("WrongBackend", (CpuBackend,), {"open": lambda self, ordinal, options, rank=None: device()})


class TakesNextShard(CpuDevice):
    def prepare_weight(self, spec: WeightSpec, parts: Sequence[StoredTensor]) -> Any:
        return super().prepare_weight(replace(spec, shard_rank=(spec.shard_rank + 1) % spec.shard_world_size), parts)


class ShardsTheFusedMatrix(CpuDevice):
    """Cuts after fusing, where each part should be cut."""

    def prepare_weight(self, spec: WeightSpec, parts: Sequence[StoredTensor]) -> Any:
        if spec.shard_axis != 0:
            return super().prepare_weight(spec, parts)
        whole = super().prepare_weight(replace(spec, shard_axis=None), parts)
        return ReferenceWeight(whole.dense.chunk(spec.shard_world_size)[spec.shard_rank].clone())


class FusesInReverse(CpuDevice):
    def prepare_weight(self, spec: WeightSpec, parts: Sequence[StoredTensor]) -> Any:
        return super().prepare_weight(spec, parts[::-1])


class TiedWeight:
    """A matrix for ``linear``, and its copy for ``embed``."""

    def __init__(self, head: ReferenceWeight) -> None:
        self.head = head
        self.embedding: ReferenceWeight | None = None


class CopiesTiedEmbedding(CpuDevice):
    """Copies when first asked to embed, and does not count the copy."""

    def prepare_weight(self, spec: WeightSpec, parts: Sequence[StoredTensor]) -> Any:
        return TiedWeight(super().prepare_weight(spec, parts))

    def weight_bytes(self, weight: Any) -> int:
        return super().weight_bytes(weight.head)

    def linear(self, weight: Any, x: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        return super().linear(weight.head, x, bias, out)

    def embed(self, weight: Any, token_ids: Tensor, out: Tensor | None = None) -> Tensor:
        if weight.embedding is None:
            weight.embedding = ReferenceWeight(weight.head.dense.clone())
        return super().embed(weight.embedding, token_ids, out)


class CountsTiedEmbeddingTwice(CpuDevice):
    def weight_bytes(self, weight: Any) -> int:
        return 2 * super().weight_bytes(weight)


class RoundsToHalf(CpuDevice):
    """Computes float32 by way of bfloat16."""

    def linear(self, weight: Any, x: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        return super().linear(ReferenceWeight(weight.dense.bfloat16().to(weight.dense)), x, bias, out)


class ForgetsBias(CpuDevice):
    def linear(self, weight: Any, x: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        return super().linear(weight, x, None, out)


class ForgetsOut(CpuDevice):
    def linear(self, weight: Any, x: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        return super().linear(weight, x, bias)


class KeepsTheFile(CpuDevice):
    def prepare_weight(self, spec: WeightSpec, parts: Sequence[StoredTensor]) -> Any:
        if len(parts) == 1 and parts[0].scheme == "f32" and spec.compute_dtype == "float32":
            weight = super().prepare_weight(spec, parts)
            stored = parts[0].read()["weight"]
            return ReferenceWeight(stored) if weight.dense.shape == stored.shape else weight
        return super().prepare_weight(spec, parts)


class MixesUpNibbles(CpuDevice):
    """Swaps low and high nibbles of one scheme."""

    def prepare_weight(self, spec: WeightSpec, parts: Sequence[StoredTensor]) -> Any:
        return super().prepare_weight(spec, [_swapped(part) if part.scheme == "q4_0" else part for part in parts])


class DeclaresSchemeItDequantises(CpuDevice):
    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, weight_schemes=("q8_0",))


class OverflowsFloat16(CpuDevice):
    def prepare_weight(self, spec: WeightSpec, parts: Sequence[StoredTensor]) -> Any:
        weight = super().prepare_weight(replace(spec, compute_dtype="float32"), parts)
        return ReferenceWeight(weight.dense.to(getattr(torch, spec.compute_dtype)))


class AcceptsMisshapenParts(CpuDevice):
    def prepare_weight(self, spec: WeightSpec, parts: Sequence[StoredTensor]) -> Any:
        return super().prepare_weight(replace(spec, out_features=sum(part.shape[0] for part in parts)), parts)


def _swapped(part: StoredTensor) -> StoredTensor:
    def read() -> dict[str, Tensor]:
        blocks = part.read()["blocks"].clone()
        packed = blocks.view(blocks.shape[0], -1, 18)[:, :, 2:]
        packed.copy_(packed << 4 | packed >> 4)
        return {"blocks": blocks}

    return replace(part, read=read)


WRONG = [
    (name, backend_with(device), Level.KV_AND_WEIGHTS, words)
    for name, device, words in [
        ("wrong shard", TakesNextShard, "rows of rank 0 of 4"),
        ("wrong shard of columns", TakesNextShard, "columns of rank 0 of 2"),
        ("shards the fused matrix", ShardsTheFusedMatrix, "of parts with 64, 32 and 32 rows"),
        ("fuses in reverse", FusesInReverse, "fused parts (q5_0, q8_0, f16)"),
        ("tied embedding copied", CopiesTiedEmbedding, "is it kept twice, once for embed and once for linear?"),
        ("tied embedding counted twice", CountsTiedEmbeddingTwice, "Is it kept twice, once for embed"),
        ("float32 by way of bfloat16", RoundsToHalf, "stored as f32, computed in float32"),
        ("forgets the bias", ForgetsBias, "with a bias"),
        ("forgets out", ForgetsOut, "leaves out unwritten"),
        ("keeps the file", KeepsTheFile, "a weight keeps no view of the file"),
        ("mixes up nibbles", MixesUpNibbles, "a matrix stored as q4_0"),
        ("declares a scheme it dequantises", DeclaresSchemeItDequantises, "declares that q8_0 is kept as stored"),
        ("overflows float16", OverflowsFloat16, "became infinite"),
        ("accepts misshapen parts", AcceptsMisshapenParts, "raise CorruptWeights"),
    ]
]
