"""Open a model's files, whatever their format."""

from pathlib import Path

from pageport.errors import ModelNotFound, UnsupportedModel
from pageport.models.checkpoint import Checkpoint
from pageport.models.loaders import pickle, safetensors
from pageport.models.loaders.folder import CONFIG_FILE
from pageport.models.loaders.gguf import GgufCheckpoint

# What fine-tuning libraries write beside the weights of an adapter.
ADAPTER_FILE = "adapter_config.json"


def open_checkpoint(path: Path, *, allow_pickle: bool = False) -> Checkpoint:
    """Open a model folder or a ``.gguf`` file; nothing but headers is read.

    A folder's safetensors win over a GGUF file, and both over pickles, which are read only with ``allow_pickle``.

    Raises:
        ModelNotFound: there is nothing at ``path``, no weights, or no config.json.
        UnsupportedModel: weights in a format that is not read, only pickles without ``allow_pickle``, or an adapter.
        CorruptWeights: a file is missing or damaged.
    """
    if path.is_file():
        return _open_file(path)
    if not path.is_dir():
        raise ModelNotFound(f"{path} does not exist. Give a model folder or a .gguf file.")
    if (path / ADAPTER_FILE).is_file() and not (path / CONFIG_FILE).is_file():
        raise UnsupportedModel(
            f"{path} holds an adapter ({ADAPTER_FILE}), and adapters are not supported yet. Give its base model, or "
            "merge the adapter into that."
        )
    if any(path.glob("*.safetensors")) or (path / safetensors.INDEX_FILE).is_file():
        return safetensors.SafetensorsCheckpoint(path)
    gguf_files = sorted(path.glob("*.gguf"))
    if len(gguf_files) == 1:
        return GgufCheckpoint(gguf_files[0])
    if gguf_files:
        names = ", ".join(file.name for file in gguf_files)
        raise ModelNotFound(f"{path} holds several GGUF files ({names}). Give the path of one of them.")
    if any((path / name).is_file() for name in (pickle.SINGLE_FILE, pickle.INDEX_FILE)):
        return _open_pickle(path, allow_pickle)
    raise ModelNotFound(
        f"{path} holds no weights (*.safetensors or one .gguf file)"
        f"{'' if (path / CONFIG_FILE).is_file() else f' and no {CONFIG_FILE}'}. "
        "Give a model folder; if this is one, its download was interrupted: fetch it again."
    )


def _open_file(path: Path) -> Checkpoint:
    if path.suffix == ".gguf":
        return GgufCheckpoint(path)
    raise UnsupportedModel(
        f"{path} is not a .gguf file. Give a .gguf file, or the folder of a model in another format."
    )


def _open_pickle(folder: Path, allow_pickle: bool) -> Checkpoint:
    if allow_pickle:
        return pickle.PickleCheckpoint(folder)
    raise UnsupportedModel(
        f"{folder} holds its weights only as {pickle.SINGLE_FILE}, a pickle, which can carry code. Use a safetensors "
        "copy, or pass --allow-pickle to read it with everything but tensors refused."
    )
