"""Devices whose weights are wrong."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pageport.backend import Backend, Capabilities, StoredTensor, WeightSpec
from pageport.backend.reference.dequantise import dequantise
from pageport.backend.reference.weights import ReferenceWeight
from pageport.errors import CorruptWeights
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


class KeptBlocks(NamedTuple):
    blocks: Tensor
    dtype: str


class KeepsBlocks(CpuDevice):
    """Keeps q8_0 as it is stored and rounds activations to int8, as far as it may: nothing wrong with that."""

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, weight_schemes=("q8_0",), quantises_activations=True)

    def prepare_weight(self, spec: WeightSpec, parts: Sequence[StoredTensor]) -> Any:
        if spec.dequantise or spec.shard_axis is not None or [part.scheme for part in parts] != ["q8_0"]:
            return super().prepare_weight(spec, parts)
        if parts[0].shape != (spec.out_features, spec.in_features):
            raise CorruptWeights(f"{spec.name} is {parts[0].shape}.")
        return KeptBlocks(parts[0].read()["blocks"].clone(), spec.compute_dtype)

    def weight_bytes(self, weight: Any) -> int:
        return weight.blocks.nbytes if isinstance(weight, KeptBlocks) else super().weight_bytes(weight)

    def linear(self, weight: Any, x: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        if isinstance(weight, KeptBlocks):
            groups = x.float().unflatten(1, (-1, 32))
            steps = groups.abs().amax(dim=2, keepdim=True) / 127
            x = ((groups / steps).round() * steps).flatten(1).to(x)
        return super().linear(self._dense(weight), x, bias, out)

    def embed(self, weight: Any, token_ids: Tensor, out: Tensor | None = None) -> Tensor:
        return super().embed(self._dense(weight), token_ids, out)

    def _dense(self, weight: Any) -> ReferenceWeight:
        if not isinstance(weight, KeptBlocks):
            return weight
        return ReferenceWeight(dequantise("q8_0", weight.blocks).to(getattr(torch, weight.dtype)))


class RoundsActivationsTooFar(KeepsBlocks):
    """Rounds to five bits, with one scale a row."""

    def linear(self, weight: Any, x: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
        if isinstance(weight, KeptBlocks):
            step = x.float().abs().amax(dim=1, keepdim=True) / 15
            x = ((x.float() / step).round() * step).to(x)
        return super().linear(weight, x, bias, out)


class RoundsWhatShallBeExact(KeepsBlocks):
    def prepare_weight(self, spec: WeightSpec, parts: Sequence[StoredTensor]) -> Any:
        return super().prepare_weight(replace(spec, dequantise=False), parts)


CORRECT = [("keeps blocks", backend_with(KeepsBlocks), Level.KV_AND_WEIGHTS)]
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
        ("rounds activations too far", RoundsActivationsTooFar, "a matrix stored as q8_0"),
        ("rounds what shall be exact", RoundsWhatShallBeExact, "q8_0 with dequantise=True"),
        ("declares a scheme it dequantises", DeclaresSchemeItDequantises, "declares that q8_0 is kept as stored"),
        ("overflows float16", OverflowsFloat16, "became infinite"),
        ("accepts misshapen parts", AcceptsMisshapenParts, "raise CorruptWeights"),
    ]
]
