"""``pageport run-batch`` from the command line, with an engine of its own."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pageport.cli.app import app as command_line
from pageport.engine.async_engine import AsyncEngine
from pageport.errors import EngineDead
from pageport.testing.tiny_model import write_tiny_llama

from ..server.conftest import ScriptedEngine
from .test_batch_file import ROUTES, line


@pytest.mark.full
def test_a_file_of_all_routes_is_answered_and_may_be_resumed(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("\n".join(line(url, url) for url in ROUTES))
    model = str(write_tiny_llama(tmp_path / "tiny"))
    files = ["-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl")]
    for resume in ([], ["--resume"]):
        done = CliRunner().invoke(command_line, ["run-batch", *files, "--model", model, *resume])
        assert done.exit_code == 0, done.output
    entries = [json.loads(text) for text in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert sorted(entry["custom_id"] for entry in entries) == sorted(ROUTES)
    assert {entry["response"]["status_code"] for entry in entries} == {200}


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        ([], [], "holds no request"),
        ([line("a"), line("a")], [], "on lines 1 and 2"),
        ([line("a")], ["--concurrency", "0"], "use at least 1"),
        ([line("a")], ["--tool-format", "morse"], "use auto, none, hermes"),
        ([line("a")], ["--model", "/no/such/model"], "/no/such/model"),
    ],
)
def test_what_cannot_work_is_refused_in_a_sentence(
    tmp_path: Path, lines: list[str], options: list[str], message: str
) -> None:
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    files = ["-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl")]
    done = CliRunner().invoke(command_line, ["run-batch", *files, *options])
    assert message in str(done.exception)


class DeadEngine(ScriptedEngine):
    """One that was killed after its start."""

    async def close(self) -> None:
        self.is_closed = True


def test_the_end_of_the_engine_ends_the_run_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = DeadEngine()
    engine.error = "The engine process was killed by signal 9."

    async def start(config: object, on_loading: object) -> DeadEngine:
        return engine

    monkeypatch.setattr(AsyncEngine, "start", start)
    (tmp_path / "in.jsonl").write_text("\n".join(line(f"id-{n}") for n in range(5)))
    files = ["-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "out.jsonl")]
    done = CliRunner().invoke(command_line, ["run-batch", *files])
    assert isinstance(done.exception, EngineDead) and "--resume" in str(done.exception)
    assert engine.is_closed and (tmp_path / "out.jsonl").read_text() == ""
