"""``PickleCheckpoint``: ``pytorch_model.bin``, read only when allowed, and then without running what it pickles."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pageport.errors import UnsupportedModel
from pageport.models.damage import damaged, refuse_pointer
from pageport.models.loaders.folder import FolderCheckpoint, PlainTensor
from pageport.models.loaders.shard_index import read_shard_index

SINGLE_FILE = "pytorch_model.bin"
INDEX_FILE = "pytorch_model.bin.index.json"
_DTYPES: Mapping[torch.dtype, str] = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


class PickleCheckpoint(FolderCheckpoint):
    """A folder with ``pytorch_model.bin``, or an index and its shards.

    Raises:
        CorruptWeights: a file is missing or damaged.
        UnsupportedModel: a file pickles more than tensors, or is from before PyTorch 1.6.
    """

    def _list_tensors(self) -> Mapping[str, PlainTensor]:
        return {
            name: PlainTensor(file, _DTYPES.get(tensor.dtype, str(tensor.dtype)), tuple(tensor.shape))
            for file in _files(self.path)
            for name, tensor in _load(file).items()
        }

    def _map(self, name: str) -> Tensor:
        tensor: Tensor = _load(self._tensors[name].file)[name]
        return tensor.contiguous()


def _files(folder: Path) -> list[Path]:
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    return [folder / name for name in sorted(set(read_shard_index(folder / INDEX_FILE).values()))]


def _load(file: Path) -> Mapping[str, Any]:
    """Map a file's tensors: only tensors are unpickled, and no data is read yet."""
    refuse_pointer(file)
    try:
        content = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    except pickle.UnpicklingError as error:
        raise UnsupportedModel(
            f"{file} pickles more than tensors, which would run code from the file ({_first_line(error)}). "
            "Use a safetensors copy of the model."
        ) from error
    except (RuntimeError, EOFError, OSError) as error:
        if "_use_new_zipfile_serialization" in str(error):
            raise UnsupportedModel(
                f"{file} is in the format from before PyTorch 1.6, which cannot be mapped, or is damaged. "
                "Use a safetensors copy of the model."
            ) from error
        raise damaged(file, f"it cannot be read ({_first_line(error)})") from error
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise UnsupportedModel(f"{file} does not hold tensors by name. Use a safetensors copy of the model.")
    return content


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
