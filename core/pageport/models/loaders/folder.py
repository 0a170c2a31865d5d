"""``FolderCheckpoint``: a folder in Hugging Face's layout, with plain numbers as weights."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pageport.backend.weights import StoredTensor
from pageport.errors import CorruptWeights, ModelNotFound, UnsupportedModel
from pageport.models.checkpoint import Checkpoint
from pageport.models.json_file import read_json_object
from pageport.models.loaders.rows import check_shape, reorder_rows
from pageport.models.spec import BiasPart, MatrixPart

CONFIG_FILE = "config.json"
_SCHEMES: Mapping[str, str] = {"F32": "f32", "BF16": "bf16", "F16": "f16"}


@dataclass(frozen=True, slots=True)
class PlainTensor:
    """Where a tensor is and what it is: the type in safetensors' words (``BF16``)."""

    file: Path
    dtype: str
    shape: tuple[int, ...]

    @property
    def scheme(self) -> str:
        """The format's name in pageport; the type itself where it has none."""
        return _SCHEMES.get(self.dtype, self.dtype.lower())


class FolderCheckpoint(Checkpoint):
    """A folder with config.json and weight files of one kind, which the subclass reads."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.config = read_config(folder)
        generation_config = folder / "generation_config.json"
        self.generation_config = read_json_object(generation_config) if generation_config.is_file() else {}
        self._tensors = self._list_tensors()
        self.scheme = _main_scheme(self._tensors.values())

    @abstractmethod
    def _list_tensors(self) -> Mapping[str, PlainTensor]:
        """Find every tensor of the folder; nothing is read but headers."""

    @abstractmethod
    def _map(self, name: str) -> Tensor:
        """Map one tensor's file and return the tensor; the mapping lives as long as it does."""

    def names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._find(name).shape

    def matrix(self, part: MatrixPart, in_features: int) -> StoredTensor:
        stored = self._find(part.name)
        source = f"{stored.file}: {part.name}"
        check_shape(source, stored.shape, (in_features, part.rows) if part.transposed else (part.rows, in_features))
        _refuse_other_types(source, stored)

        def read() -> Mapping[str, Any]:
            weight = self._map(part.name)
            return {"weight": reorder_rows(weight.t().contiguous() if part.transposed else weight, part.row_order)}

        return StoredTensor(scheme=stored.scheme, shape=(part.rows, in_features), read=read, source=source)

    def vector(self, part: BiasPart) -> Tensor:
        stored = self._find(part.name)
        source = f"{stored.file}: {part.name}"
        check_shape(source, stored.shape, (part.rows,))
        _refuse_other_types(source, stored)
        # A copy: the caller keeps vectors, and must not keep the mapping.
        return reorder_rows(self._map(part.name).to(torch.float32, copy=True), part.row_order)

    def _find(self, name: str) -> PlainTensor:
        if name in self._tensors:
            return self._tensors[name]
        files = sorted({tensor.file.name for tensor in self._tensors.values()})
        raise CorruptWeights(
            f"{self.path}: the tensor {name} is in none of {', '.join(files)}. The download was probably interrupted, "
            "or the config belongs to another model; fetch the folder again."
        )


def read_config(folder: Path) -> dict[str, Any]:
    """Read a folder's config.json. Code that an ``auto_map`` in it names is never run.

    Raises:
        ModelNotFound: there is none.
        CorruptWeights: it is not JSON.
    """
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise ModelNotFound(f"{folder} holds weights but no {CONFIG_FILE}. Fetch the whole model folder again.")
    return read_json_object(path)


def _refuse_other_types(source: str, stored: PlainTensor) -> None:
    if stored.dtype not in _SCHEMES:
        raise UnsupportedModel(
            f"{source} is stored as {stored.dtype}; weights can be {', '.join(_SCHEMES)}. "
            "Use the unquantised checkpoint or a GGUF file."
        )


def _main_scheme(tensors: Iterable[PlainTensor]) -> str:
    """Return the scheme of most weights in matrices."""
    weights: Counter[str] = Counter()
    for tensor in tensors:
        if len(tensor.shape) == 2:
            weights[tensor.scheme] += prod(tensor.shape)
    return weights.most_common(1)[0][0] if weights else "f32"
