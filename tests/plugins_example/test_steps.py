"""What docs/writing-a-backend.md builds is plugins/example, and every step on the way is a backend that passes."""

import importlib
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import pageport.backend
from pageport.testing.conformance.check import Level, Status
from pageport.testing.conformance.context import Context
from pageport.testing.conformance.suite import run_suite

STEPS = [1, 2, 3, 4]
# What the page shows of a score card.
CARD = re.compile(r"```\n([^`]*\nexample passes [^`]*)```")


def shape(line: str) -> str:
    """Reduce a line of a score card to what the page is held to: not seconds, rates, or how many checks there are."""
    line = re.sub(r" [\d.]+ GB/s.*| passes \d+", "", line)
    line = re.sub(r" (\d+)/\1 ", " all ", line)
    return re.sub(r" +([\d.]+|seconds)?$", "", re.sub(" +", " ", line))


def test_the_page_ends_with_the_plugin(steps: list[dict[str, str]], plugin: dict[str, str]) -> None:
    assert len(steps) == len(STEPS)
    assert steps[-1] == plugin


def test_other_code_on_the_page_runs_with_the_public_names(page: str) -> None:
    snippets = re.findall(r"(?<!`)\n\n```python\n(.*?)```", page, re.DOTALL)
    assert len(snippets) == 2
    for snippet in snippets:
        exec(snippet, {name: getattr(pageport.backend, name) for name in pageport.backend.__all__})


def test_the_plugin_is_short(steps: list[dict[str, str]]) -> None:
    def count(files: dict[str, str]) -> int:
        lines = [line for name, text in files.items() if name.startswith("pageport_") for line in text.splitlines()]
        return len([line for line in lines if line.strip() and not line.startswith(("import ", "from "))])

    assert count(steps[0]) < 50
    assert count(steps[-1]) < 90


@pytest.mark.parametrize("step", STEPS)
def test_after_each_step_attention_is_right(
    step: int, steps: list[dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = f"pageport_example_{step}"
    (tmp_path / package).mkdir()
    for name, content in steps[step - 1].items():
        if name.startswith("pageport_example/"):
            path = tmp_path / name.replace("pageport_example", package)
            path.write_text(content.replace("pageport_example", package))
    monkeypatch.syspath_prepend(str(tmp_path))
    context = Context(importlib.import_module(f"{package}.plugin").ExampleBackend, seed=step)
    outcomes = run_suite(context, [Level.ATTENTION], only="attention/batch/")
    assert len(outcomes) > 5
    assert [outcome.message for outcome in outcomes if outcome.status is not Status.PASSED] == []


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("step", STEPS)
def test_after_each_step_all_levels_pass_as_the_page_shows(
    step: int,
    sections: list[str],
    steps: list[dict[str, str]],
    tmp_path: Path,
    unpack: Callable[..., Path],
    run: Callable[..., "subprocess.CompletedProcess[str]"],
) -> None:
    site = unpack(tmp_path, steps[step - 1], "pageport-example", "example = pageport_example.plugin")
    done = run(["pageport", "conformance", "example"], site)
    assert done.returncode == 0, done.stdout + done.stderr
    (shown,) = CARD.findall(sections[step - 1])
    printed = {shape(line) for line in done.stdout.splitlines()}
    assert [line for line in shown.splitlines() if shape(line) not in printed] == [], done.stdout
