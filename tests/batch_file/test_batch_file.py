"""Batch files against the real application, with a scripted engine."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from pageport.batch_file.batch_line import read_batch_file, require_unique_ids
from pageport.batch_file.batch_output import BatchOutput
from pageport.batch_file.batch_run import run_batch
from pageport.batch_file.in_process_client import InProcessClient
from pageport.errors import ConfigurationError, EngineDead

from ..server.conftest import ScriptedEngine, app_for

MESSAGES = [{"role": "user", "content": "hi"}]
ROUTES = {
    "/v1/completions": {"prompt": "ab"},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/embeddings": {"input": "ab"},
    "/v1/responses": {"input": "ab"},
}


def line(custom_id: str, url: str = "/v1/completions", **body: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": {**ROUTES[url], **body}})


class Files:
    """A batch file and its output."""

    def __init__(self, folder: Path, *lines: str) -> None:
        self.input, self.output = folder / "in.jsonl", folder / "out.jsonl"
        self.input.write_text("\n".join(lines) + "\n")

    def run(self, engine: ScriptedEngine | None = None, *, resumes: bool = False, concurrency: int = 3) -> BatchOutput:
        engine = engine or ScriptedEngine()

        def check() -> None:
            if engine.error is not None:
                raise EngineDead(engine.error)

        async def go() -> BatchOutput:
            client = InProcessClient(app_for(engine))
            with BatchOutput(self.output, resumes=resumes) as output:
                lines = read_batch_file(self.input)
                options = {"concurrency": concurrency, "check": check, "on_done": lambda: None}
                await run_batch(client, lines, output, **options)
            return output

        return asyncio.run(go())

    def answers(self) -> dict[str, Any]:
        return {entry["custom_id"]: entry for entry in map(json.loads, self.output.read_text().splitlines())}


@pytest.mark.parametrize("url", ROUTES)
def test_a_line_is_answered_as_the_route_answers(tmp_path: Path, url: str) -> None:
    files = Files(tmp_path, line("one", url))
    assert files.run().num_failed == 0
    entry = files.answers()["one"]
    assert (entry["error"], entry["response"]["status_code"]) == (None, 200)
    assert entry["response"]["request_id"]
    assert entry["response"]["body"]["object"] in ("text_completion", "chat.completion", "list", "response")


def test_every_line_has_one_answer_whatever_runs_at_once(tmp_path: Path) -> None:
    files = Files(tmp_path, *(line(f"id-{n}", max_tokens=1 + n % 4) for n in range(40)))
    files.run(concurrency=7)
    lengths = {name: entry["response"]["body"]["usage"]["completion_tokens"] for name, entry in files.answers().items()}
    assert lengths == {f"id-{n}": 1 + n % 4 for n in range(40)}
    assert len(files.output.read_text().splitlines()) == 40


def test_a_refused_request_is_answered_with_the_servers_error(tmp_path: Path) -> None:
    files = Files(tmp_path, line("bad", temperature=-1), line("good"))
    assert files.run().num_failed == 1
    response = files.answers()["bad"]["response"]
    assert (response["status_code"], response["body"]["error"]["param"]) == (400, "temperature")
    assert files.answers()["good"]["response"]["status_code"] == 200


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "no JSON"),
        ("[1]", "no JSON object"),
        ('{"url": "/v1/completions", "body": {}}', "custom_id is missing"),
        ('{"custom_id": "x", "method": "GET", "url": "/v1/completions", "body": {}}', "use POST"),
        ('{"custom_id": "x", "url": "/v1/audio", "body": {}}', "use one of /v1/chat/completions"),
        ('{"custom_id": "x", "url": "/v1/completions", "body": []}', "body is no JSON object"),
        ('{"custom_id": "x", "url": "/v1/completions", "body": {"prompt": "a", "stream": true}}', "Leave out stream"),
    ],
)
def test_a_wrong_line_is_an_error_entry_and_the_others_are_answered(tmp_path: Path, text: str, message: str) -> None:
    files = Files(tmp_path, line("before"), text, line("after"))
    assert files.run().num_failed == 1
    (wrong,) = [entry for entry in files.answers().values() if entry["error"]]
    assert message in wrong["error"]["message"] and "Line 2" in wrong["error"]["message"]
    assert (wrong["response"], wrong["error"]["code"]) == (None, "invalid_line")
    assert {"before", "after"} < set(files.answers())


def test_an_id_that_two_lines_have_is_refused_before_anything_runs(tmp_path: Path) -> None:
    files = Files(tmp_path, line("a"), line("b"), line("a"))
    with pytest.raises(ConfigurationError, match="'a' is on lines 1 and 3"):
        require_unique_ids(files.input)


def test_resuming_asks_for_what_has_no_answer_or_failed_in_the_server(tmp_path: Path) -> None:
    files = Files(tmp_path, line("done"), line("refused", temperature=-1), line("broken"), line("cut"), line("new"))
    kept = [{"custom_id": name, "response": {"status_code": code}} for name, code in (("done", 200), ("refused", 400))]
    lost = {"custom_id": "broken", "response": {"status_code": 500}}
    files.output.write_text("\n".join(map(json.dumps, [*kept, lost])) + '\n{"custom_id": "cut", "resp')
    engine = ScriptedEngine()
    output = files.run(engine, resumes=True)
    assert output.finished_ids == {"done", "refused"} and output.num_failed == 1
    assert len(engine.requests) == 3
    assert {name: entry["response"]["status_code"] for name, entry in files.answers().items()} == {
        "done": 200, "refused": 400, "broken": 200, "cut": 200, "new": 200
    }  # fmt: skip
    assert len(files.output.read_text().splitlines()) == 5


def test_an_output_with_content_is_not_overwritten(tmp_path: Path) -> None:
    files = Files(tmp_path, line("a"))
    files.run()
    before = files.output.read_text()
    with pytest.raises(ConfigurationError, match="--resume"):
        files.run()
    assert files.output.read_text() == before


def test_when_the_engine_dies_the_rest_is_left_for_a_resumed_run(tmp_path: Path) -> None:
    files = Files(tmp_path, *(line(f"id-{n}") for n in range(6)))
    dying = ScriptedEngine(fail_after=1)
    dying.error = "The engine process was killed by signal 9."
    with pytest.raises(ExceptionGroup):
        files.run(dying)
    assert files.answers() == {}
    assert files.run(resumes=True).num_failed == 0
    assert len(files.answers()) == 6


def test_no_more_lines_are_read_than_run(tmp_path: Path) -> None:
    files = Files(tmp_path, *(line(f"id-{n}") for n in range(9)))
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(_hang(files), 0.2))
    assert files.answers() == {}


async def _hang(files: Files) -> None:
    engine = ScriptedEngine(hang_after=0)
    read = []

    def lines() -> Any:
        for entry in read_batch_file(files.input):
            read.append(entry)
            yield entry

    try:
        with BatchOutput(files.output, resumes=False) as output:
            client = InProcessClient(app_for(engine))
            await run_batch(client, lines(), output, concurrency=2, check=lambda: None, on_done=lambda: None)
    finally:
        assert len(read) == len(engine.aborted) == 2
