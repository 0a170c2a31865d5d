"""The header of a GGUF file, checked against the file before anything is mapped."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, Keys

from pageport.errors import CorruptWeights, UnsupportedModel
from pageport.models.damage import damaged
from pageport.models.gguf_metadata import GgufCursor, open_gguf

_MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One tensor: its shape with rows first, and its place in the file."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class GgufHeader:
    """Metadata (numbers, strings, ``GgufArray``) and tensors of one file."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


def read_gguf_header(path: Path) -> GgufHeader:
    """Read the header and check that it describes exactly this file.

    Raises:
        CorruptWeights: a Git LFS pointer, not GGUF, truncated, too long, or a header that contradicts itself.
        UnsupportedModel: a version, byte order or tensor type that is not read.
    """
    with open_gguf(path) as cursor:
        counts = cursor.counts()
        metadata = cursor.metadata(counts.entries)
        alignment = metadata.get(Keys.General.ALIGNMENT, GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise damaged(path, f"general.alignment is {alignment!r}, not a power of two")
        tensors = [_tensor(cursor) for _ in range(counts.tensors)]
        data_start = -(-cursor.position // alignment) * alignment
    placed = [replace(tensor, offset=data_start + tensor.offset) for tensor in tensors]
    _check_places(path, placed, data_start, alignment)
    return GgufHeader(path, metadata, {tensor.name: tensor for tensor in placed})


def _tensor(cursor: GgufCursor) -> GgufTensor:
    """Read one tensor's description; its offset is relative to the data."""
    name = cursor.string()
    num_dimensions = cursor.integer("I")
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise damaged(cursor.path, f"the tensor {name} has {num_dimensions} dimensions")
    shape = tuple(reversed([cursor.integer("Q") for _ in range(num_dimensions)]))
    type_id, offset = cursor.integer("I"), cursor.integer("Q")
    try:
        kind = GGMLQuantizationType(type_id)
    except ValueError:
        raise UnsupportedModel(
            f"{cursor.path}: {name} has the unknown GGML type {type_id}. Use a file with another quantisation."
        ) from None
    block_weights, block_bytes = GGML_QUANT_SIZES[kind]
    if shape[-1] % block_weights:
        raise damaged(cursor.path, f"{name} has {kind.name} rows of {shape[-1]}, not blocks of {block_weights}")
    return GgufTensor(name, kind, shape, offset, prod(shape) // block_weights * block_bytes)


def _check_places(path: Path, tensors: list[GgufTensor], data_start: int, alignment: int) -> None:
    if len({tensor.name for tensor in tensors}) < len(tensors):
        raise CorruptWeights(f"{path}: two tensors have the same name. Fetch the file again.")
    end = data_start
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.num_bytes)):
        if tensor.offset < end or tensor.offset % alignment:
            raise CorruptWeights(
                f"{path}: {tensor.name} starts at byte {tensor.offset}, where {end} is the first free one and "
                f"multiples of {alignment} are allowed. Fetch the file again."
            )
        end = tensor.offset + tensor.num_bytes
    # Writers may or may not pad the last tensor.
    if not end <= path.stat().st_size < end + alignment:
        raise damaged(path, "its data is not what its header describes", end)
