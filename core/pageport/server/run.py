"""``run_server``: from settings to a listening server, until a signal or the engine ends it."""

import asyncio
import logging
import ssl
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from pageport.config import EngineConfig
from pageport.engine.async_engine import AsyncEngine
from pageport.engine.log import open_log
from pageport.engine.progress import progress_bar
from pageport.errors import ConfigurationError, EngineDead
from pageport.server.api_keys import read_api_keys
from pageport.server.config import ServerConfig
from pageport.server.listener import Listener, open_listener
from pageport.server.stop_request import StopRequest
from pageport.server.tls import tls_context

if TYPE_CHECKING:
    from pageport.server.drain import Drain
    from pageport.server.http_server import HttpServer

logger = logging.getLogger("pageport.server")

# How often a server that ends with its engine looks whether it still lives, in seconds.
WATCH_INTERVAL_S = 0.25
# How long a server without an engine goes on to answer 503, so that probes and load balancers see why it ends.
DEAD_GRACE_S = 5.0
# How long the last events may take to leave; a client that does not read them is left alone then.
FLUSH_TIMEOUT_S = 1.0

ServerMaker = Callable[[AsyncEngine], "HttpServer"]


def run_server(engine_config: EngineConfig, server_config: ServerConfig) -> None:
    """Start the engine, serve until SIGINT or SIGTERM, and close the engine.

    Raises:
        PageportError: it could not start, or the engine ended; one sentence says why.
    """
    open_log(server_config.log_format)
    # What cannot be had should not cost the loading of a model.
    read_api_keys(server_config)
    tls = tls_context(server_config)
    with open_listener(server_config) as listener:
        asyncio.run(_run(engine_config, server_config, listener, tls))


async def _run(
    engine_config: EngineConfig, config: ServerConfig, listener: Listener, tls: ssl.SSLContext | None
) -> None:
    stop = StopRequest()
    stop.listen()
    with progress_bar("Loading the model") as on_loading:
        starting = asyncio.create_task(AsyncEngine.start(engine_config, on_loading, restarts=config.restart_engine))
        try:
            # The HTTP packages are imported while the engine loads.
            make_server = await asyncio.to_thread(_import_server, config, tls)
            engine = await _unless_stopped(starting, stop)
        finally:
            starting.cancel()
    if engine is None:
        return
    try:
        for line in engine.info.summary:
            logger.info("%s", line)
        await serve(engine, make_server(engine), config, listener, stop)
    finally:
        await engine.close()


async def serve(
    engine: AsyncEngine, server: "HttpServer", config: ServerConfig, listener: Listener, stop: StopRequest
) -> None:
    """Listen and serve until ``stop`` or the end of an engine that is not started again, and close the engine.

    Raises:
        ConfigurationError: somebody listens at the address by now.
        EngineDead: the engine ended.
    """
    listener.listen(config)
    serving = asyncio.create_task(server.serve(sockets=[listener.socket]))
    logger.info("Serving %s at %s", engine.info.model_name, listener.url)
    if config.restart_engine:
        await _first(serving, stop.asked())
    else:
        await _first(serving, stop.asked(), _end_of(engine))
        if engine.error is not None:
            await _first(serving, stop.asked(), asyncio.sleep(DEAD_GRACE_S))
    reason = None if config.restart_engine else engine.error
    if stop.is_asked and reason is None:
        await _drain(server.drain, config.drain_timeout, stop)
    server.end()
    # Requests that still run end with an error that says so, and with them their connections.
    await asyncio.gather(engine.close(), asyncio.wait({serving}, timeout=FLUSH_TIMEOUT_S))
    server.cut()
    await serving
    if reason is not None:
        raise EngineDead(reason)


async def _drain(drain: "Drain", timeout_s: float, stop: StopRequest) -> None:
    """Let no more requests in, and return when those that run have ended or may not go on."""
    drain.begin()
    if drain.num_open:
        logger.info("Stopping; the requests that run (%d) have %g seconds to finish.", drain.num_open, timeout_s)
    await _first(drain.finished(), stop.urgent(), asyncio.sleep(timeout_s))
    if drain.num_open:
        logger.warning("Requests are broken off: %d.", drain.num_open)


async def _first(*waited: "asyncio.Task[None] | Coroutine[Any, Any, None]") -> None:
    """Return when the first of these has ended; tasks go on, coroutines do not."""
    tasks = {waiting if isinstance(waiting, asyncio.Task) else asyncio.create_task(waiting) for waiting in waited}
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks - {waiting for waiting in waited if isinstance(waiting, asyncio.Task)}:
        task.cancel()


async def _end_of(engine: AsyncEngine) -> None:
    while engine.error is None:
        await asyncio.sleep(WATCH_INTERVAL_S)


async def _unless_stopped(starting: "asyncio.Task[AsyncEngine]", stop: StopRequest) -> AsyncEngine | None:
    """Wait for the engine; None when the signal to stop came first."""
    stopping = asyncio.create_task(stop.asked())
    await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if starting.done():
        return starting.result()
    starting.cancel()
    await asyncio.wait({starting})
    return None


def _import_server(config: ServerConfig, tls: ssl.SSLContext | None) -> ServerMaker:
    """Import what serves HTTP and return how to make a server.

    Raises:
        ConfigurationError: a package is missing.
    """
    try:
        from pageport.server.app import create_app
        from pageport.server.http_server import HttpServer
        from pageport.server.tracing import require_tracing
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"The server needs the package {error.name}. Install it with: pip install 'pageport[server]'."
        ) from error
    require_tracing(config)
    return lambda engine: HttpServer(create_app(engine, config), config, tls)
