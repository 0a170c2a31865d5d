"""The end of a server: what runs is finished or told, what is new is sent away."""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from pageport.server.stop_request import StopRequest

from .served import Served, served

QUESTION = {"prompt": "a", "stream": True}


def with_open_stream(test: Callable[[Served, AsyncIterator[str]], Coroutine[Any, Any, None]], **settings: Any) -> None:
    """Run ``test`` on a server and the lines of a stream that has begun."""

    async def run() -> None:
        async with (
            served(**settings) as server,
            server.client.stream("POST", "/v1/completions", json=QUESTION) as response,
        ):
            lines = response.aiter_lines()
            await anext(lines)
            await test(server, lines)

    asyncio.run(asyncio.wait_for(run(), 30))


async def last_of(lines: AsyncIterator[str]) -> str:
    return [line async for line in lines if line][-1].removeprefix("data: ")


def test_a_draining_server_sends_new_requests_away() -> None:
    async def test(server: Served, lines: AsyncIterator[str]) -> None:
        server.stop.ask()
        await asyncio.sleep(0.05)
        refused = await server.post()
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_draining")
        assert int(refused.headers["retry-after"]) > 0
        assert refused.headers["connection"] == "close"

    with_open_stream(test)


def test_a_draining_server_is_alive_but_not_ready() -> None:
    async def test(server: Served, lines: AsyncIterator[str]) -> None:
        assert (await server.client.get("/ready")).json() == {"status": "ok"}
        server.stop.ask()
        await asyncio.sleep(0.05)
        ready = await server.client.get("/ready")
        assert (ready.status_code, ready.json()) == (503, {"status": "draining"})
        assert (await server.client.get("/health")).status_code == 200
        assert (await server.client.get("/metrics")).status_code == 200

    with_open_stream(test)


def test_what_runs_is_finished_before_the_end() -> None:
    async def test(server: Served, lines: AsyncIterator[str]) -> None:
        server.stop.ask()
        await asyncio.sleep(0.05)
        assert not server.end.done()
        server.engine.gate.set()
        assert await last_of(lines) == "[DONE]"
        await asyncio.wait_for(server.end, 5)
        assert server.engine.aborted == []

    with_open_stream(test)


def stop_twice(stop: StopRequest) -> None:
    stop.ask()
    stop.ask()


@pytest.mark.parametrize(
    ("how", "settings"),
    [(StopRequest.ask, {"drain_timeout": 0.1}), (stop_twice, {}), (StopRequest.insist, {})],
    ids=["out of time", "asked twice", "at once"],
)
def test_what_may_not_be_finished_ends_with_an_error(how: Callable[[StopRequest], None], settings: Any) -> None:
    async def test(server: Served, lines: AsyncIterator[str]) -> None:
        how(server.stop)
        assert json.loads(await last_of(lines))["error"]["code"] == "engine_dead"
        await asyncio.wait_for(server.end, 5)
        assert len(server.engine.aborted) == 1

    with_open_stream(test, **settings)


def test_an_idle_server_ends_when_asked_and_is_not_reached_after() -> None:
    async def run() -> None:
        async with served() as server:
            assert (await server.client.get("/version")).status_code == 200
            server.stop.ask()
            await asyncio.wait_for(server.end, 5)
            with pytest.raises(httpx.ConnectError):
                await server.post()

    asyncio.run(run())


def test_a_long_text_that_is_still_read_does_not_hold_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads cannot be interrupted: who waits for one is told."""
    monkeypatch.setattr("pageport.server.service.LONG_BODY_BYTES", 0)
    is_told = threading.Event()

    async def run() -> None:
        async with served() as server:
            monkeypatch.setattr(server.engine, "prepare", lambda *args, **kwargs: is_told.wait(10))
            asking = asyncio.create_task(server.post())
            await asyncio.sleep(0.1)
            server.stop.insist()
            refused = await asyncio.wait_for(asking, 5)
            await asyncio.wait_for(server.end, 5)
            is_told.set()
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "server_draining")

    asyncio.run(run())


def num_wakeups() -> int:
    """Count how often this thread waited for something, so far."""
    status = Path(f"/proc/self/task/{threading.get_native_id()}/status").read_text()
    return int(status.partition("voluntary_ctxt_switches:")[2].split()[0])


def test_an_idle_server_sleeps() -> None:
    """What costs is waking up: once a second is what the Date header takes."""

    async def run() -> None:
        async with served() as server:
            assert (await server.client.get("/version")).status_code == 200
            before = num_wakeups()
            await asyncio.sleep(1.0)
            assert num_wakeups() - before <= 5

    asyncio.run(run())


def test_the_date_goes_on_while_the_server_sleeps() -> None:
    async def run() -> None:
        async with served() as server:
            await server.client.get("/version")
            await asyncio.sleep(1.2)
            told = parsedate_to_datetime((await server.client.get("/version")).headers["date"])
            assert abs(told.timestamp() - time.time()) < 2.2  # it is told in whole seconds, and renewed once a second

    asyncio.run(run())


def test_a_client_that_never_finishes_its_request_does_not_hold_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pageport.server.run.FLUSH_TIMEOUT_S", 0.1)

    async def run() -> None:
        async with served() as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.client.base_url.port)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{")
            await server.client.get("/version")
            server.stop.insist()
            await asyncio.wait_for(server.end, 5)
            assert await reader.read() == b""

    asyncio.run(run())
