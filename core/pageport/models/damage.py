"""What is wrong with a damaged weight file, said the same way for every format."""

import re
from pathlib import Path

from pageport.errors import CorruptWeights

_POINTER = b"version https://git-lfs.github.com/spec/"


def damaged(path: Path, problem: str, expected_bytes: int | None = None) -> CorruptWeights:
    """Return the error for a file that is not whole, with both sizes where the right one is known."""
    found = path.stat().st_size
    sizes = f"found {found} bytes" if expected_bytes is None else f"expected {expected_bytes} bytes, found {found}"
    return CorruptWeights(f"{path}: {problem} ({sizes}). The download was probably interrupted; fetch the file again.")


def refuse_pointer(path: Path) -> None:
    """Refuse the text file that Git LFS leaves where a large file has not been fetched.

    Raises:
        CorruptWeights: ``path`` is one.
    """
    with path.open("rb") as file:
        head = file.read(512)
    if not head.startswith(_POINTER):
        return
    size = re.search(rb"^size (\d+)", head, re.MULTILINE)
    raise CorruptWeights(
        f"{path} is a Git LFS pointer, not the weights (expected {int(size[1]) if size else 'more'} bytes, found "
        f"{path.stat().st_size}). Run `git lfs pull` in its repository, or download the file itself."
    )
