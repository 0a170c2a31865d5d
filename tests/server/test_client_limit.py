"""What is a client's own limit (429), and what is the server's (503)."""

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from pageport.errors import ConfigurationError
from pageport.server.config import ServerConfig

from .conftest import ScriptedEngine, app_for

KEYS = {"api_key": ("alice: a", "bob: b")}


async def ask_beside_an_open_request(
    app: FastAPI, first: dict[str, str], second: dict[str, str], path: str = "/v1/models"
) -> httpx.Response:
    """Ask for ``path`` with the headers ``second`` while one with ``first`` waits for an engine that hangs."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        running = asyncio.create_task(client.post("/v1/completions", json={"prompt": "a"}, headers=first))
        await asyncio.sleep(0.02)
        answer = await client.get(path, headers=second)
        running.cancel()
        await asyncio.wait({running})
        assert (await client.get("/v1/models", headers=first)).status_code == 200  # what is over counts no more
    return answer


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_a_client_over_its_own_limit_is_told_to_slow_down() -> None:
    app = app_for(ScriptedEngine(hang_after=0), max_requests_per_client=1, **KEYS)
    answer = asyncio.run(ask_beside_an_open_request(app, bearer("a"), bearer("a")))
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "rate_limit_exceeded")
    assert int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize(
    ("settings", "key", "path", "status"),
    [
        ({"max_requests_per_client": 1}, "b", "/v1/models", 200),  # another client
        ({"max_requests_per_client": 2}, "a", "/v1/models", 200),
        ({"max_requests_per_client": 1}, "a", "/health", 200),
        ({"max_requests_per_client": 1}, "wrong", "/v1/models", 401),  # nobody's share is used up by strangers
        ({}, "a", "/v1/models", 200),
    ],
)
def test_nobody_else_is_limited(settings: dict[str, Any], key: str, path: str, status: int) -> None:
    app = app_for(ScriptedEngine(hang_after=0), **settings, **KEYS)
    assert asyncio.run(ask_beside_an_open_request(app, bearer("a"), bearer(key), path)).status_code == status


def test_without_keys_a_client_is_its_address() -> None:
    app = app_for(ScriptedEngine(hang_after=0), max_requests_per_client=1)
    assert asyncio.run(ask_beside_an_open_request(app, {}, bearer("other"))).status_code == 429


def test_a_full_server_is_no_clients_fault() -> None:
    """However many queue limits there are: what all share answers 503."""

    async def run() -> httpx.Response:
        app = app_for(ScriptedEngine(hang_after=0), max_queued_tokens=1, max_requests_per_client=2)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            running = asyncio.create_task(client.post("/v1/completions", json={"prompt": "a"}))
            await asyncio.sleep(0.02)
            refused = await client.post("/v1/completions", json={"prompt": "a"})
            running.cancel()
            return refused

    refused = asyncio.run(run())
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_overloaded")
    assert int(refused.headers["retry-after"]) > 0


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="max-requests-per-client is 0"):
        ServerConfig(max_requests_per_client=0)
