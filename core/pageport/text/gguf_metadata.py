"""Read the metadata of a GGUF file, and nothing else of it.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The ``gguf`` package keeps one numpy array for each
string, which takes seconds for a vocabulary; this takes milliseconds.
"""

import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

from pageport.errors import CorruptWeights

_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


class _Value(NamedTuple):
    value: Any
    end: int  # byte offset just past it


def read_gguf_metadata(path: Path) -> dict[str, Any]:
    """Return every key of the file's metadata; arrays as lists.

    Raises:
        CorruptWeights: not a GGUF file of a known version, or cut off within the metadata.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(data, path)
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        # ValueError: an empty file cannot be mapped.
        raise CorruptWeights(f"{path}: the GGUF metadata is damaged or cut off ({error}). Fetch it again.") from error


def _read(data: mmap.mmap, path: Path) -> dict[str, Any]:
    magic, version, _, num_entries = struct.unpack_from("<4sIQQ", data, 0)
    if magic != b"GGUF":
        raise CorruptWeights(f"{path} is not a GGUF file: it begins with {magic!r}.")
    if version not in _VERSIONS:
        raise CorruptWeights(f"{path} is GGUF version {version}; known: {_VERSIONS}. Convert the model again.")
    metadata: dict[str, Any] = {}
    offset = 24
    for _ in range(num_entries):
        key, offset = _string(data, offset)
        (kind,) = struct.unpack_from("<I", data, offset)
        metadata[key], offset = _value(data, offset + 4, kind)
    return metadata


def _value(data: mmap.mmap, offset: int, kind: int) -> _Value:
    if kind == _STRING:
        return _string(data, offset)
    if kind == _ARRAY:
        element_kind, count = struct.unpack_from("<IQ", data, offset)
        return _array(data, offset + 12, element_kind, count)
    code = _scalar_code(kind)
    return _Value(struct.unpack_from("<" + code, data, offset)[0], offset + struct.calcsize("<" + code))


def _array(data: mmap.mmap, offset: int, kind: int, count: int) -> _Value:
    if kind in (_STRING, _ARRAY):
        values = []
        for _ in range(count):
            value, offset = _value(data, offset, kind)
            values.append(value)
        return _Value(values, offset)
    code = _scalar_code(kind)
    end = offset + count * struct.calcsize("<" + code)
    if end > len(data):
        raise struct.error(f"an array of {count} values passes the end of the file")
    return _Value(list(struct.unpack_from(f"<{count}{code}", data, offset)), end)


def _string(data: mmap.mmap, offset: int) -> _Value:
    (length,) = struct.unpack_from("<Q", data, offset)
    end = offset + 8 + length
    if end > len(data):
        raise struct.error(f"a string of {length} bytes passes the end of the file")
    return _Value(data[offset + 8 : end].decode("utf-8"), end)


def _scalar_code(kind: int) -> str:
    if kind not in _SCALARS:
        raise struct.error(f"value type {kind} is unknown")
    return _SCALARS[kind]
