"""The line that is written for each request."""

import asyncio
import json
import logging
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from pageport.engine.log import JsonFormatter, TextFormatter

from .conftest import ScriptedEngine, app_for, ask
from .served import served

PROMPT = "the-secret-question"
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": PROMPT},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": PROMPT}]},
    "/v1/responses": {"input": PROMPT},
    "/v1/embeddings": {"input": PROMPT},
}

Log = pytest.LogCaptureFixture


@pytest.fixture
def log(caplog: Log) -> Log:
    caplog.set_level(logging.DEBUG, "pageport")
    return caplog


def lines(log: Log) -> list[dict[str, Any]]:
    """Return the requests' lines as programs read them."""
    records = [record for record in log.records if record.name == "pageport.server.access_log"]
    return [json.loads(JsonFormatter().format(record)) for record in records]


def post(app: FastAPI, path: str, **arguments: Any) -> httpx.Response:
    return ask(app, "POST", path, **arguments)


@pytest.mark.parametrize("stream", [False, True])
def test_a_finished_request_has_one_line_with_its_tokens_and_times(log: Log, stream: bool) -> None:
    body = {"prompt": "abc", "n": 2, "stream": stream}
    response = post(app_for(ScriptedEngine("hello")), "/v1/completions", json=body, headers={"x-request-id": "mine"})
    assert response.status_code == 200
    (line,) = lines(log)
    expected = {"method": "POST", "route": "/v1/completions", "status": 200, "request_id": "mine", "level": "INFO",
                "client": "127.0.0.1", "prompt_tokens": 3, "cached_tokens": 0, "completion_tokens": 12,
                "finish_reason": "stop"}  # fmt: skip
    assert {name: line[name] for name in expected} == expected
    assert 0 < line["first_token_s"] < line["total_s"]


@pytest.mark.parametrize(
    ("engine", "body", "status", "reason"),
    [
        (ScriptedEngine("hello"), {"max_tokens": 2}, 200, "length"),
        (ScriptedEngine(fail_after=2), {}, 503, "error"),
        (ScriptedEngine(fail_after=2), {"stream": True}, 200, "error"),
        (ScriptedEngine(hang_after=1), {"timeout": 0.01}, 408, "error"),
        (ScriptedEngine(), {"n": 0}, 400, None),
    ],
)
def test_the_line_says_how_a_request_ended(
    log: Log, engine: ScriptedEngine, body: dict[str, Any], status: int, reason: str | None
) -> None:
    post(app_for(engine), "/v1/completions", json={"prompt": "abc", **body})
    (line,) = lines(log)
    assert (line["status"], line.get("finish_reason")) == (status, reason)


def test_a_client_is_called_by_the_name_of_its_key(log: Log) -> None:
    app = app_for(ScriptedEngine(), api_key=("alice: sesame", "open"))
    for key in ("sesame", "open", "wrong"):
        ask(app, "GET", "/v1/models", headers={"authorization": f"Bearer {key}"})
    assert [(line["client"], line["status"]) for line in lines(log)] == [
        ("alice", 200), ("key-2", 200), ("127.0.0.1", 401),
    ]  # fmt: skip
    assert not any(key in log.text for key in ("sesame", "open", "wrong"))


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("fault", [{}, {"temperature": "hot"}, {"max_tokens": -1}, {"unknown": 1}, {"timeout": 1e-9}])
def test_prompts_are_not_written_whatever_happens(log: Log, path: str, fault: dict[str, Any]) -> None:
    for engine in (ScriptedEngine(), ScriptedEngine(fail_after=1)):
        post(app_for(engine), path, json=BODIES[path] | fault)
    assert len(lines(log)) == 2
    assert PROMPT not in log.text
    assert not any(PROMPT in json.dumps(line) for line in lines(log))


@pytest.mark.parametrize("path", BODIES)
def test_prompts_are_written_where_that_is_asked_for(log: Log, path: str) -> None:
    assert post(app_for(ScriptedEngine(), log_prompts=True), path, json=BODIES[path]).status_code == 200
    (line,) = lines(log)
    assert len(line["prompts"]) == 1
    assert PROMPT in line["prompts"][0]


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_left_is_told_apart(log: Log, stream: bool) -> None:
    async def run() -> None:
        async with served() as server:
            body = {"prompt": "a", "stream": stream}
            asking = asyncio.create_task(server.client.post("/v1/completions", json=body))
            while not server.engine.requests:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            asking.cancel()
            while not lines(log):
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(run(), 10))
    (line,) = lines(log)
    assert (line["status"], line["finish_reason"]) == (200 if stream else 499, "abort")


def test_probes_that_succeed_are_for_debugging_only(log: Log) -> None:
    engine = ScriptedEngine()
    app = app_for(engine)
    for path in ("/health", "/metrics", "/engine"):
        ask(app, "GET", path)
    engine.error = "dead"
    ask(app, "GET", "/ready")
    assert [(line["route"], line["level"]) for line in lines(log)] == [
        ("/health", "DEBUG"), ("/metrics", "DEBUG"), ("/engine", "DEBUG"), ("/ready", "INFO"),
    ]  # fmt: skip


def test_a_path_that_leads_nowhere_is_written_so_that_it_forges_no_line(log: Log) -> None:
    ask(app_for(ScriptedEngine()), "GET", "/no%0AINFO%20such/" + "x" * 300)
    (record,) = [record for record in log.records if record.name == "pageport.server.access_log"]
    text = TextFormatter().format(record)
    assert text.startswith("INFO Request method=GET route=none path=")
    assert "\n" not in text
    assert len(text) < 400


def test_nothing_is_written_where_that_is_asked_for(log: Log) -> None:
    ask(app_for(ScriptedEngine(), disable_log_requests=True), "GET", "/version")
    assert lines(log) == []
