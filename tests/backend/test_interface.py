"""The interface is what its lock file and its time capsules say, and core depends on no hardware."""

import ast
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import pageport
import pageport.backend
from pageport.backend import lock
from pageport.backend.interface_change import version_of

CORE = Path(pageport.__file__).parent
ROOT = Path(__file__).parents[2]
# The texts of the published versions.
FROZEN = {
    version_of(path.read_text()): path.read_text()
    for path in (ROOT / "tests" / "time_capsules").glob("*/interface.lock")
}
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


def test_the_interface_changes_only_with_its_version_and_its_lock_file():
    fault = lock.find_fault(lock.render(), lock.LOCK_FILE.read_text(), FROZEN)
    if fault is not None:
        pytest.fail(fault, pytrace=False)


@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("backend/capabilities.py", "pipeline_depth: int = 0", "pipeline_depth: int = 1"),
        ("backend/device.py", "num_blocks: int", "blocks: int"),
        ("backend/interface.py", "ordinal: int", "ordinal: str"),
        ("backend/reference/kv.py", "key: Tensor", "keys: Tensor"),
        ("backend/description.py", 'Literal["silu", "gelu", "gelu_tanh"]', 'Literal["silu", "gelu"]'),
        ("backend/program.py", "samples: bool = False", "samples: bool = True"),
        ("errors.py", "OutOfMemory(BackendError)", "OutOfMemory(PageportError)"),
        ("backend/choice.py", "Rows = npt.NDArray[np.int64]", "Rows = list[int]"),
    ],
)
def test_a_change_in_a_source_is_one_in_the_text(tmp_path, monkeypatch, file, before, after):
    for source in {f"{module.replace('.', '/')}.py" for module in lock.OTHER_NAMES} | {"pageport/backend/*.py"}:
        for path in CORE.parent.glob(source):
            (tmp_path / path.relative_to(CORE.parent)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, tmp_path / path.relative_to(CORE.parent))
    same = lock.render()
    monkeypatch.setattr(lock, "PACKAGE", tmp_path / "pageport")
    assert lock.render() == same
    path = tmp_path / "pageport" / file
    path.write_text(path.read_text().replace(before, after))
    assert lock.render() != same


def test_every_name_of_ours_in_the_text_is_in_the_text():
    locked = {name for names in lock.public_names().values() for name in names}
    text = re.sub(r"\bdef \w+|'[^']*'", "", lock.render())
    used = set(re.findall(r"\b[A-Za-z]\w+\b", text)) - locked
    ours = {
        name
        for module in lock.OTHER_NAMES
        for node in ast.parse((CORE.parent / f"{module.replace('.', '/')}.py").read_text()).body
        for name in lock.bound_names(node)
    }
    assert used & ours == set()


def test_public_names_are_importable_from_where_the_text_says():
    assert lock.public_names()["pageport.backend"] == sorted(pageport.backend.__all__)
    for module, names in lock.public_names().items():
        assert [name for name in names if not hasattr(import_module(module), name)] == []


@pytest.mark.parametrize("plugin", sorted((ROOT / "plugins").glob("*/pageport_*")), ids=lambda path: path.name)
def test_plugins_use_public_names_only(plugin):
    public = {(module, name) for module, names in lock.public_names().items() for name in names}
    imported = {
        (node.module, alias.name)
        for path in plugin.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "pageport"
        for alias in node.names
    }
    assert imported
    assert imported - public == set()


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
