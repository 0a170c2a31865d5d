"""``Weight``: a matrix as the native device keeps it, made from what its file holds."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from pageport.backend.reference.dtypes import torch_dtype
from pageport.backend.reference.weights import (
    check_parts,
    column_share,
    row_share,
    share_shape,
    share_slabs,
    stored_blocks,
)
from pageport.backend.weights import BLOCK_SCHEMES, PLAIN_SCHEMES, StoredTensor, WeightSpec
from pageport.errors import UnsupportedFeature
from pageport_cpu.activations import silu_mul
from pageport_cpu.float_weight import FloatWeight, pack_float
from pageport_cpu.library import Library
from pageport_cpu.quantised_weight import QuantisedWeight, pack_blocks, quantise
from pageport_cpu.weight_memory import WeightMemory

WEIGHT_SCHEMES = (*PLAIN_SCHEMES, *BLOCK_SCHEMES)

_STORED_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
# What `WeightSpec.quantisation` becomes.
_QUANTISED_SCHEMES = {"int8": "int8", "int4": "q4_1"}


@dataclass(frozen=True, slots=True)
class Weight:
    """Matrices one under the other: one, unless fused projections are stored in different formats."""

    matrices: tuple[FloatWeight | QuantisedWeight, ...]
    compute_dtype: torch.dtype

    @property
    def out_features(self) -> int:
        return sum(matrix.out_features for matrix in self.matrices)

    @property
    def in_features(self) -> int:
        return self.matrices[0].in_features

    @property
    def num_bytes(self) -> int:
        return sum(matrix.num_bytes for matrix in self.matrices)

    def linear(self, library: Library, x: Tensor, bias: Tensor | None, out: Tensor) -> None:
        """Write ``x · Wᵀ + bias`` to ``out``; rows of both may be strided, and each has its own dtype."""
        first = 0
        for matrix in self.matrices:
            outputs = slice(first, first + matrix.out_features)
            matrix.linear(library, x, None if bias is None else bias[outputs], out[:, outputs])
            first = outputs.stop

    def linear_silu_mul(self, library: Library, x: Tensor, bias: Tensor | None, gate_up: Tensor, out: Tensor) -> None:
        """Write ``silu(gate) * up`` of that product to ``out``; ``gate_up`` is room for all of it."""
        if len(self.matrices) == 1 and self.matrices[0].can_gate:
            self.matrices[0].linear_silu_mul(library, x, bias, out)
            return
        self.linear(library, x, bias, gate_up)
        silu_mul(library, gate_up, out)

    def embed(self, library: Library, token_ids: Tensor, out: Tensor) -> None:
        """Write the rows ``token_ids`` (int64) to ``out``, whose rows may be strided.

        Raises:
            UnsupportedFeature: the rows are stored in several formats.
        """
        if len(self.matrices) != 1:
            raise UnsupportedFeature(
                "An embedding whose rows are stored in several formats is not supported; convert it to one."
            )
        self.matrices[0].embed(library, token_ids, out)


def prepare_weight(
    library: Library, spec: WeightSpec, parts: Sequence[StoredTensor], memory: WeightMemory | None = None
) -> Weight:
    """Pack ``parts``, one under the other, in their own formats or the one that ``spec`` asks for.

    A shard by rows takes its share of every part, so that fused projections stay fused on each rank.

    Args:
        memory: where the weight goes; default: memory of its own.

    Raises:
        CorruptWeights: a part has another shape than announced.
        UnsupportedFeature: unknown scheme, a shard that does not divide or cuts through blocks, or values too large
            for the format asked for.
    """
    check_parts(spec, parts)
    compute_dtype = torch_dtype(spec.compute_dtype)
    memory = memory or WeightMemory()
    if spec.quantisation is not None or spec.dequantise:
        return Weight((_convert(library, spec, parts, memory),), compute_dtype)
    runs = [list(run) for _, run in groupby(parts, lambda part: part.scheme)]
    return Weight(tuple(_keep(library, spec, run, memory) for run in runs), compute_dtype)


def _convert(
    library: Library, spec: WeightSpec, parts: Sequence[StoredTensor], memory: WeightMemory
) -> FloatWeight | QuantisedWeight:
    """Pack parts of any formats in the one that ``spec`` asks for."""
    out_features, in_features = share_shape(spec, parts)
    slabs = share_slabs(spec, parts)
    if spec.quantisation is None:
        return pack_float(library, slabs, out_features, in_features, torch_dtype(spec.compute_dtype), memory)
    return quantise(library, _QUANTISED_SCHEMES[spec.quantisation], slabs, out_features, in_features, memory)


def _keep(
    library: Library, spec: WeightSpec, parts: Sequence[StoredTensor], memory: WeightMemory
) -> FloatWeight | QuantisedWeight:
    """Pack parts of one format in it."""
    scheme = parts[0].scheme
    out_features, in_features = share_shape(spec, parts)
    if scheme in PLAIN_SCHEMES:
        slabs = share_slabs(spec, parts)
        return pack_float(library, slabs, out_features, in_features, _STORED_DTYPES[scheme], memory)
    if scheme not in BLOCK_SCHEMES:
        raise UnsupportedFeature(
            f"{spec.name} is stored as {scheme!r}. Known: {', '.join(WEIGHT_SCHEMES)}; "
            "convert the model to one of these."
        )
    columns = column_share(spec)
    blocks = (stored_blocks(part, row_share(spec, part), columns) for part in parts)
    return pack_blocks(library, scheme, blocks, out_features, in_features, memory)
