"""The wheel of plugins/example, installed beside pageport: found, judged, and serving; alone and with rivals."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Files = dict[str, str]
Run = Callable[..., "subprocess.CompletedProcess[str]"]
Unpack = Callable[..., Path]


def renamed(plugin: Files, package: str) -> Files:
    return {
        name.replace("pageport_example", package): content.replace("pageport_example", package)
        for name, content in plugin.items()
        if name.startswith("pageport_example/")
    }


def test_the_installed_backend_is_found_and_passes_level_0(installed: Path, run: Run) -> None:
    done = run(["pageport", "conformance", "example", "--level", "0"], installed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "example passes" in done.stdout
    assert done.stderr == ""


@pytest.mark.full
def test_the_plugins_own_test_module_runs_with_pytest(installed: Path, plugin: Files, tmp_path: Path, run: Run) -> None:
    module = tmp_path / "test_conformance.py"
    module.write_text(plugin["tests/test_conformance.py"])
    quiet = ["-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-k", "discovery or memory"]
    done = run(["pytest", *quiet, str(module)], installed)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.smollm2
def test_the_installed_backend_generates_what_the_cpu_backend_does(installed: Path, run: Run) -> None:
    generate = ["pageport", "generate", "--temperature", "0", "--max-tokens", "16", "--dtype", "float32", "--json"]
    done = [run([*generate, "--backend", name, "The capital of France is"], installed) for name in ("example", "cpu")]
    assert [one.returncode for one in done] == [0, 0], done[0].stderr
    texts = [json.loads(one.stdout)["text"] for one in done]
    assert texts[0] == texts[1] != ""


def test_the_conformance_page_shows_the_plugins_test_module(plugin: Files) -> None:
    page = (Path(__file__).parents[2] / "docs" / "conformance.md").read_text()
    assert f"```python\n{plugin['tests/test_conformance.py']}```" in page


def test_two_distributions_with_one_name_are_both_named(
    installed: Path, plugin: Files, tmp_path: Path, unpack: Unpack, run: Run
) -> None:
    rival = unpack(tmp_path, renamed(plugin, "rival"), "rival-of-example", "example = rival.plugin")
    done = run(["pageport", "conformance", "example", "--level", "0"], installed, rival)
    assert done.returncode == 1
    assert "the name example is claimed by pageport-example 0.1.0 and rival-of-example 0.1.0" in done.stderr


def test_a_broken_backend_is_listed_with_its_reason_and_harms_nobody(
    installed: Path, tmp_path: Path, unpack: Unpack, run: Run
) -> None:
    files = {"broken.py": "import library_of_a_missing_driver\n"}
    broken = unpack(tmp_path, files, "broken-backend", "broken = broken")
    listed = run(["pageport", "backends"], installed, broken).stdout
    assert "No module named 'library_of_a_missing_driver'" in listed
    assert re.search(r"example +yes +1 +pageport-example 0\.1\.0", listed)
