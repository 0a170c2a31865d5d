"""``SafetensorsCheckpoint``: one safetensors file, or shards with an index."""

import re
from collections.abc import Mapping
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from pageport.errors import CorruptWeights
from pageport.models.loaders.folder import FolderCheckpoint, PlainTensor
from pageport.models.loaders.safetensors_header import read_header
from pageport.models.loaders.shard_index import read_shard_index

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d+)-of-(?P<count>\d+)\.safetensors")


class SafetensorsCheckpoint(FolderCheckpoint):
    """A folder with ``model.safetensors``, an index and its shards, or any single safetensors file.

    Raises:
        CorruptWeights: a file is missing or damaged, or files and index disagree.
    """

    def _list_tensors(self) -> Mapping[str, PlainTensor]:
        if (self.path / SINGLE_FILE).is_file():
            return _merge([self.path / SINGLE_FILE])
        index = self.path / INDEX_FILE
        return _indexed(index) if index.is_file() else _merge(_files_without_index(self.path))

    def _map(self, name: str) -> Tensor:
        # Opened anew each time: the library maps the whole file, and pages once touched count until it is unmapped.
        with safe_open(self._tensors[name].file, framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor


def _indexed(index: Path) -> dict[str, PlainTensor]:
    """Read the headers of all shards an index names; other files in the folder do not matter."""
    weight_map = read_shard_index(index)
    tensors = _merge([index.parent / shard for shard in sorted(set(weight_map.values()))])
    for name, shard in weight_map.items():
        if name not in tensors or tensors[name].file.name != shard:
            raise CorruptWeights(
                f"{index} says that {name} is in {shard}, which does not hold it. The files are of different "
                "versions or a download was interrupted; fetch the folder again."
            )
    return tensors


def _files_without_index(folder: Path) -> list[Path]:
    """Return the folder's one file, or its complete set of shards."""
    files = sorted(folder.glob("*.safetensors"))
    shards = [match for file in files if (match := _SHARD.fullmatch(file.name))]
    if len(files) == 1 and not shards:
        return files
    counts = {(match["stem"], int(match["count"])) for match in shards}
    numbers = {int(match["number"]) for match in shards}
    if len(shards) == len(files) and len(counts) == 1 and numbers == set(range(1, next(iter(counts))[1] + 1)):
        return files
    raise CorruptWeights(
        f"{folder} has no {INDEX_FILE}, and {', '.join(file.name for file in files)} "
        f"{'is' if len(files) == 1 else 'are'} not a complete set of shards. The download was probably interrupted; "
        "fetch the folder again."
    )


def _merge(files: list[Path]) -> dict[str, PlainTensor]:
    tensors: dict[str, PlainTensor] = {}
    for file in files:
        for name, entry in read_header(file).items():
            if name in tensors:
                raise CorruptWeights(
                    f"{name} is stored twice, in {tensors[name].file} and in {file.name}. The files are of different "
                    "versions; fetch the folder again."
                )
            tensors[name] = PlainTensor(file, entry.dtype, entry.shape)
    return tensors
