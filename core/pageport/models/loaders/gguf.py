"""``GgufCheckpoint``: a GGUF file, presented as transformers would have the model."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from pageport.backend.weights import BLOCK_SCHEMES, PLAIN_SCHEMES, StoredTensor
from pageport.errors import CorruptWeights, UnsupportedModel
from pageport.models.checkpoint import Checkpoint
from pageport.models.loaders.gguf_architecture import gguf_architecture
from pageport.models.loaders.gguf_config import model_config
from pageport.models.loaders.gguf_header import GgufHeader, GgufTensor, read_gguf_header
from pageport.models.loaders.rows import check_shape, reorder_rows
from pageport.models.spec import BiasPart, MatrixPart

# By scheme, which is the GGML type's name in lower case.
_PLAIN_DTYPES: Mapping[str, torch.dtype] = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
# Read into the config instead of being offered as weights.
_ROPE_FACTORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")


class GgufCheckpoint(Checkpoint):
    """One GGUF file. Tensors that transformers has no name for keep their own.

    Raises:
        CorruptWeights: not GGUF, truncated, or a header that contradicts itself.
        UnsupportedModel: an architecture, tensor type or variety that is not supported.
    """

    def __init__(self, file: Path) -> None:
        header = read_gguf_header(file)
        _refuse_split(header)
        _refuse_other_types(header)
        self.path = file
        self._architecture = gguf_architecture(header.metadata.get("general.architecture"))
        self._tensors = self._by_transformers_name(header)
        factors = {name: self._rope_factors(header.tensors[name]) for name in _ROPE_FACTORS if name in header.tensors}
        self.config = model_config(header, self._architecture, self.names(), factors)
        self.generation_config = {key: self.config[key] for key in ("bos_token_id", "eos_token_id")}
        self.scheme = _main_scheme(header)

    def names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        shape = self._find(name).shape
        return shape[::-1] if self._architecture.is_conv1d(name) else shape

    def matrix(self, part: MatrixPart, in_features: int) -> StoredTensor:
        # Never transposed: GGUF stores every matrix as [out, in], also those transformers does not.
        stored = self._find(part.name)
        source = self._source(part.name, stored)
        check_shape(source, stored.shape, (part.rows, in_features))
        order = self._architecture.row_order(part.name, part.rows, self.config)

        def read() -> Mapping[str, Any]:
            key = "weight" if _scheme(stored) in PLAIN_SCHEMES else "blocks"
            return {key: reorder_rows(_map(self.path, stored), order, part.row_order)}

        return StoredTensor(scheme=_scheme(stored), shape=(part.rows, in_features), read=read, source=source)

    def vector(self, part: BiasPart) -> Tensor:
        stored = self._find(part.name)
        check_shape(self._source(part.name, stored), stored.shape, (part.rows,))
        order = self._architecture.row_order(part.name, part.rows, self.config)
        return reorder_rows(self._values(stored) - self._architecture.offset(part.name), order, part.row_order)

    def _by_transformers_name(self, header: GgufHeader) -> dict[str, GgufTensor]:
        num_layers = header.metadata.get(f"{self._architecture.name}.block_count", 0)
        left = {name: tensor for name, tensor in header.tensors.items() if name not in _ROPE_FACTORS}
        named = {
            name: left.pop(gguf_name)
            for name, gguf_name in self._architecture.gguf_names(num_layers)
            if gguf_name in left
        }
        return {**named, **left}

    def _rope_factors(self, tensor: GgufTensor) -> list[float]:
        factors: list[float] = self._values(tensor).tolist()
        return factors

    def _values(self, tensor: GgufTensor) -> Tensor:
        """Read a vector as float32."""
        stored = np.fromfile(self.path, np.uint8, tensor.num_bytes, offset=tensor.offset)
        if tensor.type is GGMLQuantizationType.F32:
            return torch.from_numpy(stored.view(np.float32))
        return torch.from_numpy(dequantize(stored, tensor.type).astype(np.float32))

    def _find(self, name: str) -> GgufTensor:
        if name not in self._tensors:
            raise CorruptWeights(
                f"{self.path} lacks the tensor {name} of a {self._architecture.name} model. The conversion was "
                "incomplete; use another file of the model."
            )
        return self._tensors[name]

    def _source(self, name: str, stored: GgufTensor) -> str:
        return f"{self.path}: {stored.name} ({name})"


def _map(path: Path, tensor: GgufTensor) -> Tensor:
    """Map one matrix: plain numbers, or rows of blocks as bytes. The mapping lives as long as the tensor."""
    rows = tensor.shape[0]
    # Copy-on-write, since torch knows no read-only tensors.
    mapped = np.memmap(path, np.uint8, mode="c", offset=tensor.offset, shape=(rows, tensor.num_bytes // rows))
    stored = torch.from_numpy(mapped)
    dtype = _PLAIN_DTYPES.get(_scheme(tensor))
    return stored if dtype is None else stored.view(dtype)


def _refuse_split(header: GgufHeader) -> None:
    if header.metadata.get("split.count", 1) > 1:
        raise UnsupportedModel(
            f"{header.path} is one of {header.metadata['split.count']} parts of a model, which are not read one by "
            "one. Merge them with llama.cpp's `llama-gguf-split --merge`."
        )


def _refuse_other_types(header: GgufHeader) -> None:
    supported = (*PLAIN_SCHEMES, *BLOCK_SCHEMES)
    for tensor in header.tensors.values():
        if _scheme(tensor) not in supported:
            raise UnsupportedModel(
                f"{header.path}: {tensor.name} is quantised as {tensor.type.name}; supported are "
                f"{', '.join(supported).upper()}. Use a file of the model with one of these."
            )


def _scheme(tensor: GgufTensor) -> str:
    name: str = tensor.type.name.lower()
    return name


def _main_scheme(header: GgufHeader) -> str:
    """Return the scheme of most bytes in matrices."""
    num_bytes: Counter[str] = Counter()
    for tensor in header.tensors.values():
        if len(tensor.shape) == 2:
            num_bytes[_scheme(tensor)] += tensor.num_bytes
    return num_bytes.most_common(1)[0][0] if num_bytes else "f32"
