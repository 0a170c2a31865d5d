"""The engine's own process: ``python -m pageport.engine.process FD``, started by ``AsyncEngine``.

A thread reads commands; the main thread steps. When the API process disappears, so does this one: its end of the
pipe closes, whatever this process is doing.
"""

import gc
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from pageport.config import EngineConfig
from pageport.engine.channel import (
    Abort,
    Add,
    Blocks,
    Channel,
    Close,
    Failed,
    Loading,
    Ready,
    Refused,
    ShowBlocks,
    Start,
)
from pageport.engine.environment import prepare_environment
from pageport.engine.log import open_log
from pageport.engine.messages import EngineInfo
from pageport.errors import PageportError

if TYPE_CHECKING:
    from pageport.engine.engine import Engine

logger = logging.getLogger("pageport.engine")

# Progress messages while loading are sent at most this often.
PROGRESS_INTERVAL_S = 0.1
# While all that waits are requests whose grammars are compiled, the engine says so often that it lives.
ALIVE_INTERVAL_S = 1.0


class Built(Protocol):
    """An engine ready to step, and what clients must know of it."""

    @property
    def engine(self) -> "Engine": ...
    @property
    def info(self) -> EngineInfo: ...
    def close(self) -> None: ...


Build = Callable[[EngineConfig, Callable[[int, int], None]], Built]


class _Compiled:
    """Wakes the main thread: a grammar that a request waits for is there."""


class _CommandReader(threading.Thread):
    """Moves commands from the channel to a queue, and ends the process with its parent."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(daemon=True, name="command-reader")
        self.commands: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._channel = channel

    def run(self) -> None:
        while True:
            try:
                self.commands.put(self._channel.receive())
            except EOFError:
                # Nobody is left to answer: the main thread may be loading or inside a kernel, so do not wait for it.
                os._exit(0)


def build_on_backend(config: EngineConfig, progress: Callable[[int, int], None]) -> Built:
    """Load the model on the chosen backend; torch is loaded only now, so that the parent's end is watched."""
    prepare_environment(config.backend.backend)
    from pageport.engine.builder import build_engine

    return build_engine(config, progress)


def main(fd: int, build: Build = build_on_backend) -> int:
    """Serve one API process with the engine that ``build`` makes until it closes or disappears; return the status."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the API process decides.
    open_log()
    channel = Channel.from_fd(fd)
    reader = _CommandReader(channel)
    reader.start()
    try:
        start = reader.commands.get()
        assert isinstance(start, Start), "the first command starts the engine"
        _serve(channel, reader.commands, start, build)
    except PageportError as error:
        channel.send(Failed(str(error)))
        return 1
    except Exception as error:
        logger.exception("The engine stopped")
        channel.send(Failed(f"The engine stopped: {type(error).__name__}: {error}. Its traceback is in the log."))
        return 1
    return 0


def _serve(channel: Channel, commands: "queue.SimpleQueue[object]", start: Start, build: Build) -> None:
    built = build(start.config, _progress(channel))
    engine = built.engine
    # What was made until now stays: the garbage collector need not look at it again while requests run.
    gc.freeze()
    engine.when_compiled(lambda: commands.put(_Compiled()))
    channel.send(Ready(built.info))
    try:
        while True:
            while not commands.empty() or not engine.has_work:
                try:
                    command = commands.get(timeout=ALIVE_INTERVAL_S if engine.is_compiling else None)
                except queue.Empty:
                    break  # requests wait, though not for a step: tell that the engine lives
                if isinstance(command, Close):
                    return
                if isinstance(command, Add):
                    try:
                        engine.add(command.request)
                    except PageportError as error:
                        channel.send(Refused(command.request.request_id, error))
                elif isinstance(command, ShowBlocks):
                    channel.send(Blocks(engine.block_states()))
                elif isinstance(command, Abort):
                    engine.abort(command.request_id, command.index, command.reason)
                    break  # its effect on the counters is told even when nothing is left to run
            channel.send(engine.step())
    finally:
        built.close()


def _progress(channel: Channel) -> Callable[[int, int], None]:
    last = 0.0

    def report(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done == total or now - last > PROGRESS_INTERVAL_S:
            last = now
            channel.send(Loading(done, total))

    return report


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
