"""Make a time capsule: the example backend's wheel as it is for the current interface version, to be kept for ever."""

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from pageport.backend.interface import INTERFACE
from pageport.backend.lock import LOCK_FILE, dotted, render

FOLDER = Path(__file__).parent
PLUGIN = FOLDER.parents[1] / "plugins" / "example"
CHECKSUMS = "checksums.txt"
# Seconds since 1970 that files in a wheel are dated with: the same sources give the same bytes.
DATE = "1580601600"


def main() -> None:
    """Build the wheel, keep it with the interface's text, and write down their checksums."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="where capsules are kept; default: beside this file"
    )
    folder = parser.parse_args().folder
    version = dotted(INTERFACE)
    if (folder / version).exists():
        sys.exit(
            f"{folder / version} is there already, and what plugins of interface {version} were built against does not "
            f"change. Raise INTERFACE; or, if no release has had {version} yet, remove the folder and its lines in "
            f"{CHECKSUMS} first."
        )
    if LOCK_FILE.read_text() != render():
        sys.exit(f"{LOCK_FILE.name} is not what the interface is. Run: python -m pageport.backend.lock --write")
    if (written_for := plugin_version()) != INTERFACE:
        sys.exit(f"plugins/example was written for interface {written_for}; in its plugin.py, write {INTERFACE}.")
    (folder / version).mkdir(parents=True)
    build_wheel(folder / version)
    shutil.copyfile(LOCK_FILE, folder / version / LOCK_FILE.name)
    with (folder / CHECKSUMS).open("a") as checksums:
        for path in sorted((folder / version).iterdir()):
            checksums.write(f"{checksum(path)}  {version}/{path.name}\n")
            print(f"{path}, {path.stat().st_size} bytes")


def build_wheel(folder: Path) -> None:
    """Put the example backend's wheel into ``folder``."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder.absolute())]
    environ = {**os.environ, "SOURCE_DATE_EPOCH": DATE}
    done = subprocess.run(command, cwd=PLUGIN, env=environ, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)


def plugin_version() -> tuple[int, int]:
    """Return the interface version that the example backend was written for."""
    sys.path.insert(0, str(PLUGIN))
    from pageport_example.plugin import ExampleBackend

    return ExampleBackend.interface


def checksum(path: Path) -> str:
    """Return a file's SHA-256 as ``sha256sum`` prints it."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
