"""Read a GGUF file from its start, without torch, numpy or the ``gguf`` package.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The ``gguf`` package makes a numpy array of every
token, which takes seconds for a vocabulary. Here an array stays in the file until asked for, then takes milliseconds.
"""

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from pageport.errors import CorruptWeights, UnsupportedModel
from pageport.models.damage import damaged, refuse_pointer

_VERSIONS = (2, 3)
_START = struct.Struct("<4sIQQ")  # magic, version, number of tensors, number of metadata entries
_LENGTH = struct.Struct("<Q")
_STRING, _ARRAY = 8, 9
# The types that are numbers, as struct names them.
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True, slots=True)
class GgufArray:
    """Where an array of ``count`` strings or numbers lies in the file: bytes ``start`` to ``end``."""

    path: Path
    type: int
    count: int
    start: int
    end: int

    def values(self) -> list[Any]:
        """Read the array.

        Raises:
            CorruptWeights: a string is not UTF-8.
        """
        content = self._content()
        if self.type != _STRING:
            return list(struct.unpack(f"<{self.count}{_NUMBERS[self.type]}", content))
        try:
            return [content[start + _LENGTH.size : end].decode() for start, end in pairwise(self._starts(content))]
        except UnicodeDecodeError as error:
            raise damaged(self.path, f"a string past byte {self.start} is not UTF-8: {error}") from error

    def index(self, text: str) -> int | None:
        """Return the index of the first string that is ``text``, or None; decodes none of them."""
        if self.type != _STRING:
            return None
        encoded = text.encode()
        content, wanted = self._content(), _LENGTH.pack(len(encoded)) + encoded
        found = content.find(wanted)
        for index, start in enumerate(self._starts(content)):
            if 0 <= found < start:  # within another string
                found = content.find(wanted, start)
            if found in (start, -1):
                return index if found == start else None
        return None

    def _content(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.start)
            return file.read(self.end - self.start)

    def _starts(self, content: bytes) -> Iterator[int]:
        return _string_starts(content, 0, self.count)


class GgufCounts(NamedTuple):
    """How many tensors and entries of metadata a file says it has."""

    tensors: int
    entries: int


class GgufCursor:
    """Reads a file from its start, refusing to pass its end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.position = 0
        self._data = data

    def counts(self) -> GgufCounts:
        """Read what begins every file.

        Raises:
            CorruptWeights: not GGUF.
            UnsupportedModel: a version or byte order that is not read.
        """
        magic, version, num_tensors, num_entries = _START.unpack(self._take(_START.size))
        if magic != b"GGUF":
            raise CorruptWeights(f"{self.path} is not a GGUF file: it begins with {magic!r}. Fetch the file again.")
        if version & 0xFFFF == 0:
            raise UnsupportedModel(f"{self.path} is big-endian. Use the little-endian file.")
        if version not in _VERSIONS:
            raise UnsupportedModel(
                f"{self.path} is GGUF version {version}; versions {_VERSIONS} are read. Convert it again."
            )
        return GgufCounts(num_tensors, num_entries)

    def metadata(self, num_entries: int) -> dict[str, Any]:
        """Read the metadata: numbers, strings, and a ``GgufArray`` for each array."""
        return dict(self._entry() for _ in range(num_entries))

    def string(self) -> str:
        """Read a string."""
        text = self._take(self.integer("Q"))
        try:
            return text.decode()
        except UnicodeDecodeError as error:
            raise damaged(self.path, f"a string at byte {self.position - len(text)} is not UTF-8: {error}") from error

    def integer(self, code: str) -> int:
        """Read an integer; ``code`` is its type as struct names it."""
        return int(self._number(code))

    def _entry(self) -> tuple[str, Any]:
        key = self.string()
        return key, self._value(self.integer("I"), key)

    def _value(self, kind: int, key: str) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array(self.integer("I"), self.integer("Q"), key)
        return self._number(self._code(kind, key))

    def _array(self, kind: int, count: int, key: str) -> GgufArray:
        if kind == _ARRAY:
            raise UnsupportedModel(f"{self.path}: {key} is an array of arrays, which is not read. Convert it again.")
        start = self.position
        if kind == _STRING:
            self._skip_strings(count)
        else:
            self._skip(count * struct.calcsize(self._code(kind, key)))
        return GgufArray(self.path, kind, count, start, self.position)

    def _skip_strings(self, count: int) -> None:
        self._require(_LENGTH.size * count)
        try:
            for start in _string_starts(self._data, self.position, count):
                self.position = start
        except (struct.error, OverflowError):
            raise damaged(self.path, f"an array of {count} strings passes its end") from None
        self._require(0)

    def _number(self, code: str) -> Any:
        return struct.unpack("<" + code, self._take(struct.calcsize("<" + code)))[0]

    def _code(self, kind: int, key: str) -> str:
        if kind not in _NUMBERS:
            raise damaged(self.path, f"{key} has the unknown type {kind}")
        return _NUMBERS[kind]

    def _take(self, num_bytes: int) -> bytes:
        start = self.position
        self._skip(num_bytes)
        return self._data[start : self.position]

    def _skip(self, num_bytes: int) -> None:
        self._require(num_bytes)
        self.position += num_bytes

    def _require(self, num_bytes: int) -> None:
        if self.position + num_bytes > len(self._data):
            raise damaged(self.path, "it ends within its header", self.position + num_bytes)


@contextmanager
def open_gguf(path: Path) -> Iterator[GgufCursor]:
    """Open a file at its start.

    Raises:
        CorruptWeights: a Git LFS pointer, or too short.
    """
    refuse_pointer(path)
    if path.stat().st_size < _START.size:
        raise damaged(path, "too short to be a GGUF file", _START.size)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        yield GgufCursor(path, data)


def read_gguf_metadata(path: Path) -> dict[str, Any]:
    """Return every key of the file's metadata; arrays as lists.

    Raises:
        CorruptWeights: a Git LFS pointer, not GGUF, or cut off within the metadata.
        UnsupportedModel: a version or byte order that is not read.
    """
    with open_gguf(path) as cursor:
        metadata = cursor.metadata(cursor.counts().entries)
    return {key: value.values() if isinstance(value, GgufArray) else value for key, value in metadata.items()}


def _string_starts(data: bytes | mmap.mmap, start: int, count: int) -> Iterator[int]:
    """Yield where each of ``count`` strings starts, and then where the last one ends."""
    unpack = _LENGTH.unpack_from
    position = start
    for _ in range(count):
        yield position
        position += _LENGTH.size + unpack(data, position)[0]
    yield position
