"""``run_server``: from settings to a listening server, until a signal or the engine ends it."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from pageport.config import EngineConfig
from pageport.engine.async_engine import AsyncEngine
from pageport.engine.log import open_log
from pageport.engine.progress import progress_bar
from pageport.errors import ConfigurationError, EngineDead
from pageport.server.config import ServerConfig

if TYPE_CHECKING:
    import uvicorn

logger = logging.getLogger("pageport.server")

# How often a running server looks whether its engine still lives, in seconds.
WATCH_INTERVAL_S = 0.25
# How long a server without an engine goes on to answer 503, so that probes and load balancers see why it ends.
DEAD_GRACE_S = 5.0
# How long the last events may take to leave; a client that does not read them is left alone then.
FLUSH_TIMEOUT_S = 1.0

ServerMaker = Callable[[AsyncEngine], "uvicorn.Server"]


def run_server(engine_config: EngineConfig, server_config: ServerConfig) -> None:
    """Start the engine, serve until SIGINT or SIGTERM, and close the engine.

    Raises:
        PageportError: it could not start, or the engine ended; one sentence says why.
    """
    open_log()
    server_config.read_api_keys()  # a file that cannot be read should not cost the loading of a model
    # A port that is taken should not cost the loading of a model.
    with _bind(server_config) as listener:
        asyncio.run(_run(engine_config, server_config, listener))


async def _run(engine_config: EngineConfig, config: ServerConfig, listener: socket.socket) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with progress_bar("Loading weights") as on_loading:
        starting = asyncio.create_task(AsyncEngine.start(engine_config, on_loading, restarts=config.restart_engine))
        try:
            # The HTTP packages are imported while the engine loads.
            make_server = await asyncio.to_thread(_import_server, config)
            engine = await _unless_stopped(starting, stop)
        finally:
            starting.cancel()
    if engine is None:
        return
    server = make_server(engine)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        for line in engine.info.summary:
            logger.info("%s", line)
        logger.info("Serving %s at %s", engine.info.model_name, _url(config, listener))
        await _until_end(serving, engine, stop, outlives_engine=config.restart_engine)
        reason = None if config.restart_engine else engine.error
        server.should_exit = True
        await asyncio.wait({serving}, timeout=config.shutdown_timeout)
    finally:
        # Requests that still run end with an error that says so, and with them their connections.
        await engine.close()
    await asyncio.wait({serving}, timeout=FLUSH_TIMEOUT_S)
    server.force_exit = True
    await serving
    if reason is not None:
        raise EngineDead(reason)


async def _unless_stopped(starting: "asyncio.Task[AsyncEngine]", stop: asyncio.Event) -> AsyncEngine | None:
    """Wait for the engine; None when the signal to stop came first."""
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        return starting.result()
    starting.cancel()
    await asyncio.wait({starting})
    return None


async def _until_end(
    serving: "asyncio.Task[None]", engine: AsyncEngine, stop: asyncio.Event, *, outlives_engine: bool
) -> None:
    """Return on the signal to stop, or some time after the end of an engine that is not started again."""
    while not (stop.is_set() or serving.done()) and (outlives_engine or engine.error is None):
        await _wait(stop, WATCH_INTERVAL_S)
    if engine.error is not None and not outlives_engine:
        await _wait(stop, DEAD_GRACE_S)


async def _wait(stop: asyncio.Event, timeout_s: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), timeout_s)


def _import_server(config: ServerConfig) -> ServerMaker:
    """Import what serves HTTP and return how to make a server.

    Raises:
        ConfigurationError: a package is missing.
    """
    try:
        import uvicorn

        from pageport.server.app import create_app
        from pageport.server.service import service_of_app
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"The server needs the package {error.name}. Install it with: pip install 'pageport[server]'."
        ) from error

    class Server(uvicorn.Server):
        async def serve(self, sockets: list[socket.socket] | None = None) -> None:
            try:
                await super().serve(sockets)
            finally:
                service_of_app(self.config.app).close()

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Leave signals to ``run_server``: they also have to end a start-up, and close the engine."""
            yield

    def make_server(engine: AsyncEngine) -> uvicorn.Server:
        return Server(
            uvicorn.Config(
                create_app(engine, config),
                lifespan="off",
                log_level=config.uvicorn_log_level,
                access_log=not config.disable_log_requests,
                root_path=config.root_path,
                server_header=False,
            )
        )

    return make_server


def _bind(config: ServerConfig) -> socket.socket:
    """Take the address, without listening yet: until the engine is ready, connections are refused.

    Raises:
        ConfigurationError: it cannot be had.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise ConfigurationError(
            f"Cannot listen on {config.host} port {config.port}: {error.strerror}. "
            "Stop what uses it, or choose another --host or --port."
        ) from error
    return listener


def _url(config: ServerConfig, listener: socket.socket) -> str:
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"http://{host}:{listener.getsockname()[1]}{config.root_path}/v1"
