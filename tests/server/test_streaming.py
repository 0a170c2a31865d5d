"""Streams: their order, their end, and what happens when a side leaves."""

import asyncio
import json
from typing import Any

import pytest
from fastapi import FastAPI
from openai.types import Completion
from openai.types.chat import ChatCompletionChunk

from .conftest import Post, ScriptedEngine, app_for, ask, events


def test_a_chat_stream_tells_role_content_end_and_done(chat: Post) -> None:
    """INT-01, INT-03, INT-06."""
    *chunks, done = events(chat(stream=True))
    assert done == "[DONE]"
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas == [{"role": "assistant", "content": ""}, *({"content": c} for c in "hello"), {}]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 6 + ["stop"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert not any("usage" in chunk for chunk in chunks)
    for chunk in chunks:
        ChatCompletionChunk.model_validate_json(json.dumps(chunk), strict=True)


def test_every_choice_has_one_role_and_one_end(chat: Post) -> None:
    """INT-03 and SMP-01."""
    chunks = events(chat(stream=True, n=3))[:-1]
    for index in range(3):
        own = [c["choices"][0] for c in chunks if c["choices"][0]["index"] == index]
        assert [c["delta"].get("role") for c in own] == ["assistant"] + [None] * 6
        assert "role" not in own[1]["delta"]
        assert sum(c["finish_reason"] is not None for c in own) == 1


def test_usage_comes_once_at_the_end_when_asked_for(chat: Post) -> None:
    """INT-01."""
    *chunks, last, done = events(chat(stream=True, stream_options={"include_usage": True}))
    assert done == "[DONE]"
    assert last["choices"] == []
    assert last["usage"] == chat().json()["usage"]
    assert all(chunk["usage"] is None for chunk in chunks)


def test_continuous_usage_counts_up(complete: Post) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last, _ = events(complete(stream=True, stream_options=options))
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [1, 2, 3, 4, 5, 6]
    assert last["usage"]["completion_tokens"] == 6


def test_a_completion_stream_is_the_same_text(complete: Post) -> None:
    chunks = events(complete(stream=True))[:-1]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == "hello"
    assert [c["choices"][0]["finish_reason"] for c in chunks] == [None] * 5 + ["stop"]
    for chunk in chunks[-1:]:
        Completion.model_validate_json(json.dumps(chunk), strict=True)


def test_streams_are_kept_by_no_proxy(complete: Post) -> None:
    """NET-03."""
    headers = complete(stream=True).headers
    assert headers["content-type"].startswith("text/event-stream")
    assert (headers["cache-control"], headers["x-accel-buffering"]) == ("no-cache", "no")


def test_any_text_stays_inside_one_data_line() -> None:
    """NET-05 and DET-01."""
    text = "a\r\nb\rc\u2028d\u2029e\x85f\x0bg naïve 🔥 žluťoučký 日本 👨‍👩‍👧 \ufffd"
    app = app_for(ScriptedEngine(text))
    response = ask(app, "POST", "/v1/completions", json={"prompt": "a", "stream": True, "max_tokens": 120})
    assert all(line.startswith("data: ") for line in response.text.splitlines() if line)
    assert "".join(chunk["choices"][0]["text"] for chunk in events(response)[:-1]) == text


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_an_error_before_the_first_token_is_a_plain_answer(path: str) -> None:
    """INT-04."""
    body: dict[str, Any] = {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "stream": True}
    response = ask(app_for(ScriptedEngine(fail_after=0)), "POST", path, json=body)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")
    assert ask(app_for(ScriptedEngine()), "POST", path, json={**body, "n": 0}).status_code == 400


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_an_error_midway_is_the_last_event(path: str) -> None:
    """INT-04."""
    body = {"prompt": ["a"], "messages": [{"role": "user", "content": "a"}], "stream": True}
    *chunks, last = events(ask(app_for(ScriptedEngine(fail_after=3)), "POST", path, json=body))
    assert len(chunks) >= 3
    assert last["error"]["message"] == "The engine process was killed by signal 9."
    assert last["error"]["type"] == "server_error"


def test_an_error_of_one_prompt_ends_the_others() -> None:
    engine = ScriptedEngine(fail_after=2)
    response = ask(app_for(engine), "POST", "/v1/completions", json={"prompt": ["a", "b", "c"]})
    assert response.status_code == 503
    assert len(engine.aborted) == len(engine.requests)


async def post_and_leave(app: FastAPI, path: str, body: dict[str, Any], after_messages: int) -> list[Any]:
    """Send a request over bare ASGI and close the connection after that many messages of the answer."""
    sent: list[Any] = []
    leaving = asyncio.Event()
    incoming = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive() -> Any:
        if incoming:
            return incoming.pop()
        await leaving.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) == after_messages:
            leaving.set()

    if not after_messages:
        asyncio.get_running_loop().call_later(0.05, leaving.set)
    scope = {
        "type": "http", "method": "POST", "path": path, "headers": [], "query_string": b"", "root_path": "",
        "http_version": "1.1", "scheme": "http", "server": ("test", 80), "client": ("test", 1),
    }  # fmt: skip
    await asyncio.wait_for(app(scope, receive, send), 5)
    return sent


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("hang_after", [0, 2])
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_aborts_its_request(path: str, hang_after: int, stream: bool) -> None:
    """ABT-01: before the first token and after it, streamed or not."""
    engine = ScriptedEngine(hang_after=hang_after)
    body = {"prompt": ["a", "b"], "messages": [{"role": "user", "content": "a"}], "stream": stream}
    asyncio.run(post_and_leave(app_for(engine), path, body, after_messages=0))
    assert sorted(engine.aborted) == sorted(request.request_id for request in engine.requests)
    assert engine.aborted


def test_a_client_that_leaves_midway_aborts_its_stream() -> None:
    """ABT-01."""
    engine = ScriptedEngine("x" * 60)
    body = {"prompt": "a", "stream": True, "max_tokens": 50}
    sent = asyncio.run(post_and_leave(app_for(engine), "/v1/completions", body, after_messages=3))
    assert len(sent) < 10
    assert engine.aborted == [engine.requests[0].request_id]


@pytest.mark.parametrize("stream", [False, True])
def test_a_finished_request_aborts_nothing(engine: ScriptedEngine, complete: Post, stream: bool) -> None:
    """ABT-02."""
    assert complete(prompt=["a", "b"], stream=stream).status_code == 200
    assert engine.aborted == []
