"""The header of a GGUF file, checked against the file before anything is mapped.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The ``gguf`` package's reader makes numpy arrays of
every token of the vocabulary, which takes seconds; here strings of an array stay where they are until asked for.
"""

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFValueType, Keys

from pageport.errors import CorruptWeights, UnsupportedModel
from pageport.models.loaders.damage import damaged, refuse_pointer

_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_START = struct.Struct("<4sIQQ")  # magic, version, number of tensors, number of metadata entries
_LENGTH = struct.Struct("<Q")
_SCALARS: Mapping[GGUFValueType, np.dtype[Any]] = {
    GGUFValueType.UINT8: np.dtype("<u1"),
    GGUFValueType.INT8: np.dtype("<i1"),
    GGUFValueType.UINT16: np.dtype("<u2"),
    GGUFValueType.INT16: np.dtype("<i2"),
    GGUFValueType.UINT32: np.dtype("<u4"),
    GGUFValueType.INT32: np.dtype("<i4"),
    GGUFValueType.FLOAT32: np.dtype("<f4"),
    GGUFValueType.BOOL: np.dtype("?"),
    GGUFValueType.UINT64: np.dtype("<u8"),
    GGUFValueType.INT64: np.dtype("<i8"),
    GGUFValueType.FLOAT64: np.dtype("<f8"),
}


@dataclass(frozen=True, slots=True)
class StringArray:
    """Where an array of ``count`` strings lies in the file: bytes ``start`` to ``end``."""

    start: int
    end: int
    count: int


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
    """Metadata (scalars, strings, numpy arrays, ``StringArray``) and tensors of one file."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    def find_string(self, key: str, text: str) -> int | None:
        """Return the index of ``text`` in the array ``key``, or None."""
        array = self.metadata.get(key)
        if not isinstance(array, StringArray):
            return None
        encoded = text.encode()
        with self.path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = data.find(_LENGTH.pack(len(encoded)) + encoded, array.start, array.end)
            if found < 0:
                return None
            for index, position in enumerate(_string_positions(data, array.start, array.count)):
                if position >= found:
                    return index if position == found else None
        return None


def read_gguf_header(path: Path) -> GgufHeader:
    """Read the header and check that it describes exactly this file.

    Raises:
        CorruptWeights: a Git LFS pointer, not GGUF, truncated, too long, or a header that contradicts itself.
        UnsupportedModel: a version or byte order that is not read.
    """
    refuse_pointer(path)
    file_bytes = path.stat().st_size
    if file_bytes < _START.size:
        raise damaged(path, "too short to be a GGUF file", _START.size)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        cursor = _Cursor(path, data)
        num_tensors, num_entries = _read_start(path, data)
        metadata = dict(cursor.entry() for _ in range(num_entries))
        alignment = metadata.get(Keys.General.ALIGNMENT, GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise damaged(path, f"general.alignment is {alignment!r}, not a power of two")
        tensors = [cursor.tensor() for _ in range(num_tensors)]
    data_start = -(-cursor.position // alignment) * alignment
    placed = [
        GgufTensor(tensor.name, tensor.type, tensor.shape, data_start + tensor.offset, tensor.num_bytes)
        for tensor in tensors
    ]
    _check_places(path, placed, data_start, alignment)
    return GgufHeader(path, metadata, {tensor.name: tensor for tensor in placed})


def _read_start(path: Path, data: mmap.mmap) -> tuple[int, int]:
    magic, version, num_tensors, num_entries = _START.unpack_from(data, 0)
    if magic != b"GGUF":
        raise CorruptWeights(f"{path} is not a GGUF file: it begins with {magic!r}. Fetch the file again.")
    if version & 0xFFFF == 0:
        raise UnsupportedModel(f"{path} is big-endian. Use the little-endian file.")
    if version not in _VERSIONS:
        raise UnsupportedModel(f"{path} is GGUF version {version}; versions {_VERSIONS} are read. Convert it again.")
    return num_tensors, num_entries


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


def _string_positions(data: mmap.mmap, start: int, count: int) -> Iterator[int]:
    """Yield where each string of an array starts, and then where the last one ends."""
    unpack = _LENGTH.unpack_from
    position = start
    for _ in range(count):
        yield position
        position += 8 + unpack(data, position)[0]
    yield position


class _Cursor:
    """Reads a header from the start, refusing to pass the end of the file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self.position = _START.size

    def entry(self) -> tuple[str, Any]:
        """Read one metadata entry: key and value."""
        key = self._string()
        return key, self._value(self._type(key), key)

    def tensor(self) -> GgufTensor:
        """Read one tensor's description; its offset is relative to the data."""
        name = self._string()
        num_dimensions = self._integer("I")
        if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
            raise damaged(self._path, f"the tensor {name} has {num_dimensions} dimensions")
        shape = tuple(reversed([self._integer("Q") for _ in range(num_dimensions)]))
        type_id, offset = self._integer("I"), self._integer("Q")
        try:
            kind = GGMLQuantizationType(type_id)
        except ValueError:
            raise UnsupportedModel(
                f"{self._path}: {name} has the unknown GGML type {type_id}. Use a file with another quantisation."
            ) from None
        block_weights, block_bytes = GGML_QUANT_SIZES[kind]
        if shape[-1] % block_weights:
            raise damaged(self._path, f"{name} has {kind.name} rows of {shape[-1]}, not blocks of {block_weights}")
        return GgufTensor(name, kind, shape, offset, prod(shape) // block_weights * block_bytes)

    def _value(self, kind: GGUFValueType, key: str) -> Any:
        if kind is GGUFValueType.STRING:
            return self._string()
        if kind is not GGUFValueType.ARRAY:
            return self._numbers(_SCALARS[kind], 1)[0].item()
        element, count = self._type(key), self._integer("Q")
        if element is GGUFValueType.STRING:
            return self._string_array(count)
        if element is GGUFValueType.ARRAY:
            raise UnsupportedModel(f"{self._path}: {key} is an array of arrays, which is not read. Convert it again.")
        return self._numbers(_SCALARS[element], count)

    def _type(self, key: str) -> GGUFValueType:
        type_id = self._integer("I")
        try:
            return GGUFValueType(type_id)
        except ValueError:
            raise damaged(self._path, f"{key} has the unknown type {type_id}") from None

    def _string(self) -> str:
        text = self._take(self._integer("Q"))
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise damaged(self._path, f"a string at byte {self.position - len(text)} is not UTF-8: {error}") from error

    def _string_array(self, count: int) -> StringArray:
        start = self.position
        self._require(8 * count)
        try:
            for end in _string_positions(self._data, start, count):
                self.position = end
        except (struct.error, OverflowError):
            raise damaged(self._path, f"an array of {count} strings passes its end") from None
        self._require(0)
        return StringArray(start, self.position, count)

    def _numbers(self, dtype: np.dtype[Any], count: int) -> np.ndarray[Any, np.dtype[Any]]:
        return np.frombuffer(self._take(count * dtype.itemsize), dtype)

    def _integer(self, code: str) -> int:
        (value,) = struct.unpack("<" + code, self._take(struct.calcsize("<" + code)))
        return int(value)

    def _take(self, num_bytes: int) -> bytes:
        self._require(num_bytes)
        self.position += num_bytes
        return self._data[self.position - num_bytes : self.position]

    def _require(self, num_bytes: int) -> None:
        if self.position + num_bytes > len(self._data):
            raise damaged(self._path, "it ends within its header", self.position + num_bytes)
