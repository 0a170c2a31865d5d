"""``ReferenceWeight``: one dense matrix in the compute dtype, whatever it was stored as."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

from pageport.backend.reference.dequantise import block_format, dequantise
from pageport.backend.reference.dtypes import torch_dtype
from pageport.backend.weights import PLAIN_SCHEMES, StoredTensor, WeightSpec
from pageport.errors import CorruptWeights, UnsupportedFeature

# float32 bytes converted at a time: the steps of a conversion then find their input in the caches, and a matrix needs
# little beside itself while it is loaded.
SLAB_BYTES = 2**20
LARGEST_FLOAT16 = 65504.0


@dataclass(frozen=True, slots=True)
class ReferenceWeight:
    """The matrix ``dense`` [out_features, in_features]."""

    dense: Tensor


def prepare_weight(spec: WeightSpec, parts: Sequence[StoredTensor], device: torch.device) -> ReferenceWeight:
    """Convert ``parts`` to the compute dtype, one under the other, into one new tensor.

    A shard by rows takes its share of every part, so that fused projections stay fused on each rank.

    Raises:
        CorruptWeights: a part has another shape than announced.
        UnsupportedFeature: unknown scheme, a shard that does not divide, values too large for float16, or a
            quantisation, which the reference does not do.
    """
    if spec.quantisation is not None:
        raise UnsupportedFeature(f"{spec.name}: the plain-torch reference does not quantise to {spec.quantisation}.")
    check_parts(spec, parts)
    dense = torch.empty(share_shape(spec, parts), dtype=torch_dtype(spec.compute_dtype), device=device)
    filled = 0
    for slab in share_slabs(spec, parts):
        dense[filled : filled + len(slab)].copy_(slab)
        filled += len(slab)
    return ReferenceWeight(dense)


def weight_bytes(weight: ReferenceWeight) -> int:
    """Return the bytes of the dense matrix."""
    return weight.dense.nbytes


def linear(
    weight: ReferenceWeight,
    x: Float[Tensor, "tokens in_features"],
    bias: Float[Tensor, "out_features"] | None = None,
    out: Float[Tensor, "tokens out_features"] | None = None,
) -> Float[Tensor, "tokens out_features"]:
    """Return ``x · Wᵀ + bias``."""
    if out is None:
        return functional.linear(x, weight.dense, bias)
    if bias is None:
        return torch.mm(x, weight.dense.t(), out=out)
    return torch.addmm(bias, x, weight.dense.t(), out=out)


def embed(
    weight: ReferenceWeight,
    token_ids: Int64[Tensor, "tokens"],
    out: Float[Tensor, "tokens in_features"] | None = None,
) -> Float[Tensor, "tokens in_features"]:
    """Return the rows ``token_ids``."""
    return torch.index_select(weight.dense, 0, token_ids, out=out)


def check_parts(spec: WeightSpec, parts: Sequence[StoredTensor]) -> None:
    """Make sure that ``parts``, one under the other, are the matrix.

    Raises:
        CorruptWeights: their shapes are not its shape.
    """
    rows = sum(part.shape[0] for part in parts)
    if rows != spec.out_features or any(part.shape[1] != spec.in_features for part in parts):
        raise CorruptWeights(
            f"{spec.name} should be {spec.out_features} x {spec.in_features}; its parts are "
            + ", ".join(f"{part.shape[0]} x {part.shape[1]} ({part.source or 'unnamed'})" for part in parts)
            + ". The configuration does not belong to these weights."
        )


def row_share(spec: WeightSpec, part: StoredTensor) -> range:
    """Return the rows of a part that belong to this rank.

    Raises:
        UnsupportedFeature: they cannot be shared equally.
    """
    return _share(spec, 0, part.shape[0], part.source or spec.name)


def column_share(spec: WeightSpec) -> range:
    """Return the columns that belong to this rank.

    Raises:
        UnsupportedFeature: they cannot be shared equally.
    """
    return _share(spec, 1, spec.in_features, spec.name)


def share_shape(spec: WeightSpec, parts: Sequence[StoredTensor]) -> tuple[int, int]:
    """Return how many rows and columns of ``parts``, one under the other, belong to this rank."""
    return sum(len(row_share(spec, part)) for part in parts), len(column_share(spec))


def share_slabs(spec: WeightSpec, parts: Sequence[StoredTensor]) -> Iterator[Tensor]:
    """Yield what belongs to this rank from the top, some whole rows at a time, as floating-point tensors.

    Raises:
        UnsupportedFeature: values too large for float16, where that is the compute dtype.
    """
    columns = column_share(spec)
    for part in parts:
        for slab in float_slabs(part, row_share(spec, part), columns):
            if spec.compute_dtype == "float16" and part.scheme != "f16" and slab.abs().max() > LARGEST_FLOAT16:
                raise UnsupportedFeature(
                    f"{part.source or spec.name} holds values beyond float16's 65504 (stored as {part.scheme}). "
                    "Use --dtype bfloat16 or float32."
                )
            # Files of some kinds are read as transposed views, whose rows do not lie side by side.
            yield slab if slab.stride(1) == 1 else slab.contiguous()


def float_slabs(part: StoredTensor, rows: range, columns: range) -> Iterator[Tensor]:
    """Yield the rows ``rows`` from the top, some at a time, as floating-point tensors."""
    slab_rows = max(1, SLAB_BYTES // (4 * max(1, len(columns))))
    starts = range(rows.start, rows.stop, slab_rows)
    if part.scheme in PLAIN_SCHEMES:
        stored = _read(part, "weight", part.shape)
        for start in starts:
            yield stored[start : min(start + slab_rows, rows.stop), columns.start : columns.stop]
        return
    stored = stored_blocks(part, rows, columns)
    for start in range(0, len(rows), slab_rows):
        yield dequantise(part.scheme, stored[start : start + slab_rows])


def stored_blocks(part: StoredTensor, rows: range, columns: range) -> Tensor:
    """Return the blocks of some rows and columns as they are stored: uint8 [rows, bytes].

    Raises:
        CorruptWeights: the part has another shape than announced.
        UnsupportedFeature: the columns cut through blocks.
    """
    layout = block_format(part.scheme)
    if columns.start % layout.num_weights or columns.stop % layout.num_weights:
        raise UnsupportedFeature(
            f"{part.source}: columns {columns.start} to {columns.stop} cut through {part.scheme} blocks of "
            f"{layout.num_weights}. Choose a number of ranks for which shares are whole blocks."
        )
    stored = _read(part, "blocks", (part.shape[0], part.shape[1] // layout.num_weights * layout.num_bytes))
    first, last = (edge // layout.num_weights * layout.num_bytes for edge in (columns.start, columns.stop))
    return stored[rows.start : rows.stop, first:last]


def _share(spec: WeightSpec, axis: int, size: int, name: str) -> range:
    """Return the rows (axis 0) or columns (axis 1) of ``size`` that belong to this rank."""
    if spec.shard_axis != axis:
        return range(size)
    if size % spec.shard_world_size:
        raise UnsupportedFeature(
            f"{name}: {size} {'columns' if axis else 'rows'} cannot be shared equally by {spec.shard_world_size} "
            "ranks. Choose a number of ranks that divides it."
        )
    share = size // spec.shard_world_size
    return range(spec.shard_rank * share, (spec.shard_rank + 1) * share)


def _read(part: StoredTensor, key: str, shape: tuple[int, int]) -> Tensor:
    stored: Tensor = part.read()[key]
    if tuple(stored.shape) != shape:
        raise CorruptWeights(
            f"{part.source} is stored as {list(stored.shape)} where {list(shape)} was announced "
            f"({part.scheme}). The file is damaged; fetch it again."
        )
    return stored
