"""``pageport bench serve`` against the real application, with a scripted engine."""

import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from typer.testing import CliRunner

from pageport.cli.app import app as command_line

from ..server.conftest import ScriptedEngine, app_for


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = uvicorn.Server(uvicorn.Config(app_for(ScriptedEngine()), port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


def bench(url: str, *options: str) -> Any:
    return CliRunner().invoke(command_line, ["bench", "serve", "--url", url, "--no-progress", *options])


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_figures_of_a_run_are_printed_written_and_drawn(url: str, endpoint: str, tmp_path: Path) -> None:
    files = ["--output", str(tmp_path / "out.json"), "--plot", str(tmp_path / "plot.png")]
    asked = ["--num-prompts", "12", "--concurrency", "4", "--input-len", "3", "--output-len", "4"]
    done = bench(url, "--endpoint", endpoint, *asked, *files, "--api-key", "secret", "--goodput", "ttft:60000")
    assert done.exit_code == 0, done.output
    assert "12 of 12 requests" in done.output and "100.0% of the requests were good" in done.output
    written = json.loads((tmp_path / "out.json").read_text())
    assert (written["model"], written["completed"], written["total_output_tokens"]) == ("org/tiny", 12, 48)
    assert written["settings"]["request_rate"] == "inf"
    assert "secret" not in (tmp_path / "out.json").read_text()
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_failed_requests_are_told_and_end_it_with_status_1(url: str) -> None:
    done = bench(url, "--num-prompts", "3", "--num-warmups", "0", "--extra-body", '{"temperature": -1}')
    assert done.exit_code == 1
    assert "0 of 3 requests" in done.output and "3 failed, HTTP 400" in done.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--goodput", "speed:3"], "write one of ttft"),
        (["--extra-body", "[]"], "must be a JSON object"),
        (["--dataset", "jsonl"], "needs --dataset-path"),
        (["--dataset", "tokens", "--endpoint", "chat"], "cannot be sent to the chat endpoint"),
        (["--request-rate", "0"], "use more than 0"),
        (["--model", "other"], "A first request failed: HTTP 404"),
    ],
)
def test_settings_that_make_no_sense_are_refused(url: str, options: list[str], message: str) -> None:
    assert message in str(bench(url, *options).exception)


def test_without_matplotlib_a_plot_is_refused_before_the_run(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "pip install matplotlib" in str(bench(url, "--plot", "p.png").exception)
