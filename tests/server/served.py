"""``served``: a server in this process that listens as a real one does, around a scripted engine."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from pageport.engine.messages import EngineRequest
from pageport.engine.outputs import ChoiceDelta
from pageport.errors import EngineDead
from pageport.server.app import create_app
from pageport.server.config import ServerConfig
from pageport.server.http_server import HttpServer
from pageport.server.listener import open_listener
from pageport.server.run import serve
from pageport.server.stop_request import StopRequest
from pageport.server.tls import tls_context

from .conftest import ScriptedEngine


class GatedEngine(ScriptedEngine):
    """Goes on after the first token when ``gate`` is set; what is open when it is closed ends with an error."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.is_closed = False

    async def stream(self, request: EngineRequest) -> AsyncGenerator[list[ChoiceDelta], None]:
        async for deltas in super().stream(request):
            yield deltas
            await self.gate.wait()
            if self.is_closed:
                raise EngineDead("The engine was closed.")

    async def close(self) -> None:
        self.is_closed = True
        self.gate.set()


@dataclass
class Served:
    """A server in this process, and a client of it. ``end`` is done when the server is."""

    engine: GatedEngine
    url: str
    client: httpx.AsyncClient
    stop: StopRequest
    end: "asyncio.Task[None]"

    async def post(self) -> httpx.Response:
        return await self.client.post("/v1/completions", json={"prompt": "a"})


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[Served]:
    """Serve on a free port, or on the unix socket that ``settings`` name; stop at once in the end."""
    engine, stop, config = GatedEngine(), StopRequest(), ServerConfig(port=0, **settings)
    with open_listener(config) as listener:
        app = create_app(engine, config)  # type: ignore[arg-type]  # the engine's double
        server = HttpServer(app, config, tls_context(config))
        end = asyncio.create_task(serve(engine, server, config, listener, stop))  # type: ignore[arg-type]
        await asyncio.sleep(0)  # it listens from its first step on
        url = "http://local" if config.uds else listener.url.removesuffix("/v1")
        transport = httpx.AsyncHTTPTransport(uds=config.uds)
        try:
            async with httpx.AsyncClient(transport=transport, base_url=url, timeout=10) as client:
                yield Served(engine, url, client, stop, end)
        finally:
            stop.insist()
            await asyncio.wait_for(end, 10)
