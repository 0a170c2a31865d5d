"""Body size, queued tokens, deadlines, request ids, key files."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pageport.engine.messages import EngineRequest
from pageport.engine.outputs import ChoiceDelta
from pageport.errors import ConfigurationError
from pageport.server.admission import Admission
from pageport.server.api_keys import read_api_keys
from pageport.server.config import ServerConfig

from .conftest import ScriptedEngine, app_for, ask, events

BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "abcdef"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "abcdef"}]},
    "/v1/responses": {"input": "abcdef"},
}


class GatedEngine(ScriptedEngine):
    """Answers nothing before ``gate`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def stream(self, request: EngineRequest) -> AsyncGenerator[list[ChoiceDelta], None]:
        await self.gate.wait()
        async for deltas in super().stream(request):
            yield deltas


@pytest.mark.parametrize("path", [*BODIES, "/tokenize", "/detokenize"])
@pytest.mark.parametrize("declares_length", [True, False])
def test_a_body_over_the_limit_is_too_large(engine: ScriptedEngine, path: str, declares_length: bool) -> None:
    async def parts() -> AsyncGenerator[bytes, None]:
        for _ in range(101):
            yield b"x"

    content: Any = b"x" * 101 if declares_length else parts()
    response = ask(app_for(engine, max_body_bytes=100), "POST", path, content=content)
    assert (response.status_code, response.headers["connection"]) == (413, "close")
    assert "100 bytes" in response.json()["error"]["message"]
    assert ask(app_for(engine, max_body_bytes=100), "POST", path, content=b"x" * 100).status_code == 400


@pytest.mark.parametrize("declared", ["-1", "x", "9" * 5000, "٣"])
def test_a_declared_length_that_is_none_harms_nobody(engine: ScriptedEngine, declared: str) -> None:
    headers = {"content-length": declared.encode()}
    content = b'{"prompt":"a"}'
    response = ask(app_for(engine), "POST", "/v1/completions", content=content, headers=headers)
    assert response.status_code == (413 if declared.startswith("9") else 200)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
def test_prompts_over_the_queue_are_told_to_come_again(path: str, stream: bool) -> None:
    """A first one waits, however long; the next does not fit beside it; once it is answered, there is room."""

    async def talk() -> list[httpx.Response]:
        engine = GatedEngine()
        transport = httpx.ASGITransport(app_for(engine, max_queued_tokens=8))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            first = asyncio.create_task(client.post("/v1/completions", json={"prompt": "abcdefghij"}))
            await asyncio.sleep(0.05)
            refused = await client.post(path, json=BODIES[path] | {"stream": stream})
            engine.gate.set()
            return [await first, refused, await client.post(path, json=BODIES[path] | {"stream": stream})]

    first, refused, later = asyncio.run(talk())
    assert [first.status_code, refused.status_code, later.status_code] == [200, 503, 200]
    assert int(refused.headers["retry-after"]) > 0
    assert refused.json()["error"]["code"] == "engine_overloaded"


def test_the_queue_counts_each_prompt_until_its_answer() -> None:
    admission = Admission(10)
    first, second = admission.admit(4), admission.admit(6)
    first.release(3)
    first.release()
    first.release()
    assert admission.num_queued_tokens == 6
    second.release()
    assert admission.num_queued_tokens == 0


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("hang_after", [0, 2])
def test_a_request_over_its_time_is_given_up(path: str, hang_after: int) -> None:
    engine = ScriptedEngine(hang_after=hang_after)
    response = ask(app_for(engine), "POST", path, json=BODIES[path] | {"timeout": 0.05})
    assert (response.status_code, response.json()["error"]["code"]) == (408, "timeout")
    assert f"{hang_after} tokens" in response.json()["error"]["message"]
    assert engine.aborted == [request.request_id for request in engine.requests]
    assert engine.requests[0].timeout_s == 0.05


def test_every_prompt_of_a_request_over_its_time_is_given_up() -> None:
    engine = ScriptedEngine(hang_after=1)
    response = ask(app_for(engine), "POST", "/v1/completions", json={"prompt": ["a", "b", "c"], "timeout": 0.05})
    assert response.status_code == 408
    assert sorted(engine.aborted) == sorted(request.request_id for request in engine.requests)
    assert len(engine.aborted) == 3


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_stream_over_its_time_ends_with_an_error(path: str) -> None:
    engine = ScriptedEngine(hang_after=2)
    last = events(ask(app_for(engine), "POST", path, json=BODIES[path] | {"timeout": 0.05, "stream": True}))[-1]
    assert last["error"]["code"] == "timeout"
    assert len(engine.aborted) == 1


def test_the_end_of_time_that_the_engine_finds_is_told_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with --request-timeout, which only the engine knows."""
    engine = ScriptedEngine()
    script = engine._script

    def timed_out(request: EngineRequest) -> Any:
        for deltas in script(request):
            deltas[0].finish_reason = "timeout"
            yield deltas

    monkeypatch.setattr(engine, "_script", timed_out)
    response = ask(app_for(engine), "POST", "/v1/completions", json={"prompt": "a"})
    assert (response.status_code, response.json()["error"]["code"]) == (408, "timeout")


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("timeout", [0, -1, "soon", [1]])
def test_a_time_that_is_none_is_refused(engine: ScriptedEngine, path: str, timeout: Any) -> None:
    response = ask(app_for(engine), "POST", path, json=BODIES[path] | {"timeout": timeout})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "timeout")


@pytest.mark.parametrize("given", ["abc-123", "A" * 128, "6f1d:x/y+z=", "user@host"])
def test_a_sane_request_id_is_taken_over(engine: ScriptedEngine, given: str) -> None:
    response = ask(app_for(engine), "GET", "/health", headers={"x-request-id": given})
    assert response.headers.get_list("x-request-id") == [given]


@pytest.mark.parametrize("given", [None, b"", b"A" * 129, b"a b", b"\xe9", "ключ".encode(), b"a\tb", b"<x>"])
def test_any_other_request_gets_an_id_of_its_own(engine: ScriptedEngine, given: bytes | None) -> None:
    app = app_for(engine)
    headers: dict[str, Any] = {} if given is None else {"x-request-id": given}
    ids = [ask(app, "GET", "/health", headers=headers).headers["x-request-id"] for _ in range(2)]
    assert all(len(request_id) == 32 for request_id in ids)
    assert ids[0] != ids[1]


@pytest.mark.parametrize(
    ("path", "status"), [("/v1/models", 401), ("/health", 200), ("/nope", 401), ("/v1/completions", 401)]
)
def test_every_answer_has_a_request_id(engine: ScriptedEngine, path: str, status: int) -> None:
    response = ask(app_for(engine, api_key=("secret",)), "GET", path)
    assert response.status_code == status
    assert response.headers["x-request-id"]


def test_a_fault_of_ours_is_answered_as_any_request_is(engine: ScriptedEngine) -> None:
    """With its id, readable for browsers, and counted."""
    app = app_for(engine, allowed_origins=("*",))
    info, engine.info = engine.info, None  # type: ignore[assignment]
    headers = {"x-request-id": "mine", "origin": "https://a.example"}
    response = ask(app, "POST", "/v1/completions", json={"prompt": "a"}, headers=headers)
    assert (response.status_code, response.headers["x-request-id"]) == (500, "mine")
    assert response.headers["access-control-allow-origin"] == "*"
    assert "x-request-id" in response.headers["access-control-expose-headers"].lower()
    engine.info = info
    assert 'http_responses_total{route="/v1/completions",status="500"} 1.0' in ask(app, "GET", "/metrics").text


def test_keys_come_from_a_file_too(engine: ScriptedEngine, tmp_path: Path) -> None:
    """SEC-06 and NET-05: byte order mark, blank lines and line ends of any system."""
    file = tmp_path / "keys"
    file.write_bytes("\ufefffirst\r\n\r\n  second ключ \n".encode())
    app = app_for(engine, api_key=("third",), api_key_file=str(file))
    keys = ["first", "second ключ", "third", "", "\ufefffirst", "fourth"]
    headers = [{"authorization": f"Bearer {key}".encode()} for key in keys]
    statuses = [ask(app, "GET", "/v1/models", headers=header).status_code for header in headers]
    assert statuses == [200, 200, 200, 401, 401, 401]


@pytest.mark.parametrize("content", [None, b"", b"\n \r\n", b"\xff\xfe"])
def test_a_file_without_keys_does_not_open_the_server(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigurationError, match="keys"):
        read_api_keys(ServerConfig(api_key_file=str(file)))
