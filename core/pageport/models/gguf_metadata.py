"""``GgufReader``: reads a GGUF file from its start, without torch, numpy or the ``gguf`` package.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The ``gguf`` package makes a numpy array of each token
of the vocabulary, which takes seconds. Here an array stays in the file until asked for, and then takes milliseconds.
"""

import mmap
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pageport.errors import CorruptWeights, UnsupportedModel
from pageport.models.damage import damaged, refuse_pointer

_VERSIONS = (2, 3)
_START = struct.Struct("<4sIQQ")  # magic, version, number of tensors, number of metadata entries
_LENGTH = struct.Struct("<Q")
_STRING, _ARRAY = 8, 9
# The types of numbers, in the words of struct.
_NUMBERS: Mapping[int, str] = {
    **{0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"},
}


@dataclass(frozen=True, slots=True)
class GgufArray:
    """Where an array of ``count`` strings or numbers lies in the file: bytes ``start`` to ``end``."""

    path: Path
    type: int
    start: int
    end: int
    count: int

    def values(self) -> list[Any]:
        """Read the array.

        Raises:
            CorruptWeights: a string that is not UTF-8.
        """
        content = self._content()
        if self.type != _STRING:
            return list(struct.unpack(f"<{self.count}{_NUMBERS[self.type]}", content))
        starts = list(_string_starts(content, 0, self.count))
        try:
            return [content[start + 8 : end].decode() for start, end in pairwise(starts)]
        except UnicodeDecodeError as error:
            raise damaged(self.path, f"a string after byte {self.start} is not UTF-8: {error}") from error

    def index(self, text: str) -> int | None:
        """Return the index of the first string that equals ``text``, or None, without reading all of them."""
        if self.type != _STRING:
            return None
        content, encoded = self._content(), text.encode()
        found = content.find(_LENGTH.pack(len(encoded)) + encoded)
        if found < 0:
            return None
        for index, start in enumerate(_string_starts(content, 0, self.count)):
            if start >= found:
                return index if start == found else None
        return None

    def _content(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.start)
            return file.read(self.end - self.start)
