"""``HttpServer``: uvicorn, ended by its owner and by no signal."""

import asyncio
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import uvicorn
from fastapi import FastAPI

from pageport.server.config import ServerConfig
from pageport.server.service import service_of_app

# How often the Date header is renewed, in seconds: all that an idle server wakes up for.
TICK_S = 1.0


class HttpServer(uvicorn.Server):
    """Serves ``app`` on sockets that others have bound."""

    def __init__(self, app: FastAPI, config: ServerConfig, tls: ssl.SSLContext | None) -> None:
        settings = uvicorn.Config(
            app,
            lifespan="off",
            log_config=None,  # its lines go where ours go
            log_level=config.uvicorn_log_level,
            access_log=False,
            root_path=config.root_path,
            server_header=False,
        )
        settings.load()
        settings.ssl = tls
        super().__init__(settings)
        self._service = service_of_app(app)
        self.drain = self._service.drain
        self._is_ending = asyncio.Event()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until ``end`` has been called and every connection is closed."""
        try:
            await super().serve(sockets)
        finally:
            self._service.close()

    def end(self) -> None:
        """Take no more connections, and close each as soon as what it asked for is answered."""
        self.should_exit = True
        self.drain.end()
        self._is_ending.set()

    def cut(self) -> None:
        """Break off the connections that are left: of clients that do not read."""
        self.force_exit = True
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    async def main_loop(self) -> None:
        """Wait for the end; uvicorn's own loop looks for it ten times a second."""
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_ending.wait(), TICK_S)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to ``run_server``: they also have to end a start-up, and close the engine."""
        yield
