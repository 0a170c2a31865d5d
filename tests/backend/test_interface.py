"""The interface is what its lock file says, and core depends on no hardware."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pageport
from pageport.backend import lock

CORE = Path(pageport.__file__).parent
# Vendors and their programming interfaces. Core asks what a device can do, never who made it.
VENDOR_WORDS = re.compile(
    r"cuda|nvidia|\bnv\w*ml\b|cudnn|cublas|nccl|rocm|\bamd|\bhip\b|\brccl|\bxpu|\bintel|oneapi|\bsycl|neuron|\btpu|"
    r"\bxla\b|\bmps\b|\btriton",
    re.IGNORECASE,
)


def core_files() -> list[Path]:
    files = sorted(CORE.rglob("*.py"))
    assert len(files) > 30
    return files


def test_interface_matches_its_lock_file():
    assert lock.render() == lock.LOCK_FILE.read_text(), (
        "The backend interface changed. If that is on purpose, run `python -m pageport.backend.lock --write`, "
        "raise INTERFACE in backend/interface.py, and add a line to CHANGELOG.md."
    )


def test_lock_file_tells_a_changed_default_and_a_renamed_argument(tmp_path, monkeypatch):
    folder = tmp_path / "backend"
    shutil.copytree(CORE / "backend", folder)
    monkeypatch.setattr(lock, "FOLDER", folder)
    same = lock.render()
    assert same == lock.LOCK_FILE.read_text()
    for file, before, after in [
        ("capabilities.py", "pipeline_depth: int = 0", "pipeline_depth: int = 1"),
        ("device.py", "num_blocks: int", "blocks: int"),
        ("interface.py", "ordinal: int", "ordinal: str"),
        ("reference/kv.py", "key: Tensor", "keys: Tensor"),
    ]:
        text = (folder / file).read_text()
        (folder / file).write_text(text.replace(before, after))
        assert lock.render() != same
        (folder / file).write_text(text)


def test_core_names_no_vendor_and_no_accelerator_interface():
    named = [
        f"{path.relative_to(CORE)}:{number}: {line.strip()}"
        for path in core_files()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if VENDOR_WORDS.search(line)
    ]
    assert named == []


def test_core_imports_no_backend():
    imported = set()
    for path in core_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                imported.add(node.module.split(".")[0])
    assert [name for name in imported if name.startswith("pageport_")] == []


def test_interface_is_imported_without_torch():
    code = "import sys, pageport.backend; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"
