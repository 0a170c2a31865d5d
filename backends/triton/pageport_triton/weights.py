"""``Weight``: a matrix as the Triton devices keep it, made from what its file holds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor

from pageport.backend.reference import weights as reference
from pageport.backend.reference.dtypes import torch_dtype
from pageport.backend.reference.weights import (
    ReferenceWeight,
    check_parts,
    column_share,
    row_share,
    share_shape,
    share_slabs,
    stored_blocks,
)
from pageport.backend.weights import StoredTensor, WeightSpec
from pageport.errors import UnsupportedFeature
from pageport_triton.op_configurations import OpConfiguration
from pageport_triton.quantised_linear import quantised_linear, quantised_rows
from pageport_triton.quantised_matrix import BLOCK_BYTES, QuantisedMatrix, pack_blocks, quantise

# Kept in their own format. The rest becomes a matrix in the compute dtype.
WEIGHT_SCHEMES = tuple(BLOCK_BYTES)
QUANTISATIONS = ("int8", "int4")
# Rows of blocks that are laid out at a time.
_SLAB_ROWS = 4096

Matrix = ReferenceWeight | QuantisedMatrix


@dataclass(frozen=True, slots=True)
class Weight:
    """Matrices one under the other: one, unless fused projections are stored in different formats."""

    matrices: tuple[Matrix, ...]
    compute_dtype: torch.dtype

    @property
    def out_features(self) -> int:
        return sum(map(_out_features, self.matrices))

    @property
    def in_features(self) -> int:
        first = self.matrices[0]
        return first.in_features if isinstance(first, QuantisedMatrix) else first.dense.shape[1]


def prepare_weight(spec: WeightSpec, parts: Sequence[StoredTensor], device: torch.device) -> Weight:
    """Lay out ``parts``, one under the other, in their own formats or the one that ``spec`` asks for.

    A shard by rows takes its share of every part, so that fused projections stay fused on each rank.

    Raises:
        CorruptWeights: a part has another shape than announced.
        UnsupportedFeature: unknown scheme, a shard that does not divide or cuts through blocks, or values too large
            for the format asked for.
    """
    check_parts(spec, parts)
    compute_dtype = torch_dtype(spec.compute_dtype)
    if spec.quantisation is not None:
        bits: Literal[4, 8] = 8 if spec.quantisation == "int8" else 4
        return Weight((quantise(bits, share_slabs(spec, parts), *share_shape(spec, parts), device),), compute_dtype)
    if spec.dequantise:
        return Weight((reference.prepare_weight(spec, parts, device),), compute_dtype)
    runs = [list(run) for _, run in groupby(parts, _kept_scheme)]
    return Weight(tuple(_keep(spec, run, device) for run in runs), compute_dtype)


def weight_bytes(weight: Weight) -> int:
    """Return the bytes that all its matrices take."""
    return sum(
        matrix.num_bytes if isinstance(matrix, QuantisedMatrix) else matrix.dense.nbytes for matrix in weight.matrices
    )


def linear(
    weight: Weight,
    x: Tensor,
    bias: Tensor | None = None,
    out: Tensor | None = None,
    *,
    configuration: OpConfiguration,
) -> Tensor:
    """Return ``x · Wᵀ + bias``; rows of ``x`` and ``out`` may be strided."""
    if len(weight.matrices) == 1 and isinstance(weight.matrices[0], ReferenceWeight):
        return reference.linear(weight.matrices[0], x, bias, out)
    out = x.new_empty(len(x), weight.out_features) if out is None else out
    first = 0
    for matrix in weight.matrices:
        outputs = slice(first, first + _out_features(matrix))
        first = outputs.stop
        part_bias = None if bias is None else bias[outputs]
        if isinstance(matrix, QuantisedMatrix):
            quantised_linear(matrix, x, part_bias, out[:, outputs], configuration)
        else:
            out[:, outputs] = reference.linear(matrix, x, part_bias)
    return out


def embed(weight: Weight, token_ids: Tensor, out: Tensor | None = None, *, configuration: OpConfiguration) -> Tensor:
    """Return the rows ``token_ids``.

    Raises:
        UnsupportedFeature: the rows are stored in several formats.
    """
    if len(weight.matrices) != 1:
        raise UnsupportedFeature(
            "An embedding whose rows are stored in several formats is not supported; convert it to one."
        )
    (matrix,) = weight.matrices
    if isinstance(matrix, ReferenceWeight):
        return reference.embed(matrix, token_ids, out)
    if out is None:
        out = torch.empty(len(token_ids), matrix.in_features, dtype=weight.compute_dtype, device=token_ids.device)
    quantised_rows(matrix, token_ids, out, configuration)
    return out


def _keep(spec: WeightSpec, parts: Sequence[StoredTensor], device: torch.device) -> Matrix:
    """Lay out parts of one format in it."""
    scheme = _kept_scheme(parts[0])
    if scheme is None:
        rows = sum(part.shape[0] for part in parts)
        return reference.prepare_weight(replace(spec, out_features=rows), parts, device)
    columns = column_share(spec)
    slabs = (
        slab for part in parts for slab in torch.split(stored_blocks(part, row_share(spec, part), columns), _SLAB_ROWS)
    )
    return pack_blocks(scheme, slabs, *share_shape(spec, parts), device)


def _kept_scheme(part: StoredTensor) -> str | None:
    return part.scheme if part.scheme in WEIGHT_SCHEMES else None


def _out_features(matrix: Matrix) -> int:
    return matrix.out_features if isinstance(matrix, QuantisedMatrix) else len(matrix.dense)
