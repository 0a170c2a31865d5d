"""The header of a safetensors file, checked against the file before anything is mapped.

Format: https://github.com/huggingface/safetensors#format. Eight bytes hold the length of a JSON header, which gives
each tensor's type, shape and place in the data that fills the rest of the file without gaps.
"""

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pageport.errors import CorruptWeights
from pageport.models.damage import damaged, refuse_pointer

_LENGTH_BYTES = 8
# The library that reads the data refuses longer ones.
_MAX_HEADER_BYTES = 100_000_000
_ITEM_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 8),
    **dict.fromkeys(("F32", "I32", "U32"), 4),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 2),
    **dict.fromkeys(("I8", "U8", "BOOL", "F8_E4M3", "F8_E5M2"), 1),
}


@dataclass(frozen=True, slots=True)
class HeaderEntry:
    """One tensor: its type in the format's own words, its shape, and its bytes ``start`` to ``end`` of the data."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


def read_header(path: Path) -> dict[str, HeaderEntry]:
    """Read the header and check that it describes exactly this file.

    Raises:
        CorruptWeights: a Git LFS pointer, truncated, too long, or a header that contradicts itself.
    """
    refuse_pointer(path)
    file_bytes = path.stat().st_size
    with path.open("rb") as file:
        prefix = file.read(_LENGTH_BYTES)
        if len(prefix) < _LENGTH_BYTES:
            raise damaged(path, "too short to be a safetensors file", _LENGTH_BYTES)
        (header_bytes,) = struct.unpack("<Q", prefix)
        if header_bytes > min(file_bytes - _LENGTH_BYTES, _MAX_HEADER_BYTES):
            raise damaged(path, f"its header claims {header_bytes} bytes", _LENGTH_BYTES + header_bytes)
        text = file.read(header_bytes)
    entries = _entries(path, text)
    data_bytes = _check_places(path, entries)
    if _LENGTH_BYTES + header_bytes + data_bytes != file_bytes:
        problem = "its data is not what its header describes"
        raise damaged(path, problem, _LENGTH_BYTES + header_bytes + data_bytes)
    return entries


def _entries(path: Path, text: bytes) -> dict[str, HeaderEntry]:
    try:
        header = json.loads(text)
        return {name: _entry(value) for name, value in header.items() if name != "__metadata__"}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise damaged(path, f"its header is not a safetensors header: {error}") from error


def _entry(value: Mapping[str, Any]) -> HeaderEntry:
    start, end = value["data_offsets"]
    shape = tuple(value["shape"])
    if not all(isinstance(number, int) and number >= 0 for number in (start, end, *shape)):
        raise ValueError(f"an entry {value} is impossible")
    return HeaderEntry(str(value["dtype"]), shape, start, end)


def _check_places(path: Path, entries: Mapping[str, HeaderEntry]) -> int:
    """Check that the tensors tile the data, and return how many bytes they take."""
    position = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].end)):
        if entry.start != position:
            what = "overlaps the tensor before it" if entry.start < position else "leaves a gap before it"
            raise CorruptWeights(
                f"{path}: {name} starts at byte {entry.start} of the data, {position} was expected: it {what}. "
                "Fetch the file again."
            )
        item_bytes = _ITEM_BYTES.get(entry.dtype)
        needed = None if item_bytes is None else item_bytes * math.prod(entry.shape)
        if entry.end < entry.start or (needed is not None and entry.end - entry.start != needed):
            raise CorruptWeights(
                f"{path}: {name} ({entry.dtype} {list(entry.shape)}) takes {entry.end - entry.start} bytes where "
                f"{needed} are needed. Fetch the file again."
            )
        position = entry.end
    return position
