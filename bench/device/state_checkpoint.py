"""``StateCheckpoint``: the weights of a model of transformers, where they are, as pageport reads a checkpoint."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pageport.backend.weights import StoredTensor
from pageport.models.checkpoint import Checkpoint
from pageport.models.loaders.rows import reorder_rows
from pageport.models.spec import BiasPart, MatrixPart

SCHEMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}


class StateCheckpoint(Checkpoint):
    """Nothing is copied until a matrix is prepared."""

    def __init__(self, model: Any) -> None:
        self.path = Path("in-memory")
        self.config: Mapping[str, Any] = {**model.config.to_dict(), "architectures": [type(model).__name__]}
        self.generation_config: Mapping[str, Any] = {}
        self.scheme = SCHEMES[model.dtype]
        tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
        self._tensors: dict[str, Tensor] = {
            name: tensor.detach() for name, tensor in model.state_dict().items() if name not in tied
        }

    def names(self) -> frozenset[str]:
        return frozenset(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def matrix(self, part: MatrixPart, in_features: int) -> StoredTensor:
        def read() -> Mapping[str, Any]:
            stored = self._tensors[part.name]
            return {"weight": reorder_rows(stored.t().contiguous() if part.transposed else stored, part.row_order)}

        return StoredTensor(scheme=self.scheme, shape=(part.rows, in_features), read=read, source=part.name)

    def vector(self, part: BiasPart) -> Tensor:
        return reorder_rows(self._tensors[part.name].to(torch.float32, copy=True), part.row_order)
