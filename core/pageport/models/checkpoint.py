"""``Checkpoint``: a model's files behind one face, whatever their format."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pageport.backend.weights import StoredTensor
from pageport.models.spec import BiasPart, MatrixPart


class Checkpoint(ABC):
    """Weights by their Hugging Face names, and the config in Hugging Face's terms.

    A GGUF file is presented the same way: its metadata as a config, its tensors under the names transformers uses,
    rows and norm weights as transformers has them.
    """

    path: Path
    config: Mapping[str, Any]  # as config.json
    generation_config: Mapping[str, Any]  # as generation_config.json; empty when there is none
    # The scheme most matrix bytes are stored in ("bf16", "q4_1", …): decides `--dtype auto`.
    scheme: str

    @abstractmethod
    def names(self) -> frozenset[str]:
        """Every stored tensor's name."""

    @abstractmethod
    def shape(self, name: str) -> tuple[int, ...]:
        """A tensor's stored shape.

        Raises:
            CorruptWeights: there is none of this name; says which file was expected to hold it.
        """

    @abstractmethod
    def matrix(self, part: MatrixPart, in_features: int) -> StoredTensor:
        """Describe a matrix in the orientation and row order ``part`` asks for; nothing is read yet.

        Raises:
            CorruptWeights: missing, or of another shape than ``part.rows`` by ``in_features``.
        """

    @abstractmethod
    def vector(self, part: BiasPart) -> Tensor:
        """Read a bias or norm weight as float32 [rows].

        Raises:
            CorruptWeights: missing, or of another size.
        """
