"""``AsyncEngine``: an engine in its own process, driven from an event loop. No torch here."""

import asyncio
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

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
from pageport.engine.input_processor import InputProcessor
from pageport.engine.messages import EngineInfo, EngineRequest, EngineStats, StepOutputs
from pageport.engine.output_processor import OutputProcessor
from pageport.engine.outputs import ChoiceDelta
from pageport.engine.status_log import StatusLog
from pageport.errors import EngineDead, PageportError
from pageport.models.resolve import resolve_model
from pageport.sampling.beam import BeamSearchParams
from pageport.sampling.params import SamplingParams
from pageport.scheduling.request import FinishReason
from pageport.text.chat import ChatTemplate
from pageport.text.tokenizer import Tokenizer, load_tokenizer

logger = logging.getLogger(__name__)

# How long a closing engine may take before it is killed.
CLOSE_TIMEOUT_S = 1.0
# What a step may take before the first one is over: nothing is known of model and machine then.
UNKNOWN_STEP_S = 15.0
# An engine that is silent for so many times its longest step hangs.
STALL_STEPS = 4
# A dead engine is started again after the first delay, and after twice the last one each time it dies again.
FIRST_RESTART_DELAY_S = 0.5
LONGEST_RESTART_DELAY_S = 30.0
# One that was ready for so long has recovered: its next end is a first one.
STABLE_AFTER_S = 60.0


class AsyncEngine:
    """The API process's view of one engine.

    Text is handled here, tokens there: prompts are encoded and checked before they cross, tokens are decoded and stop
    strings found after they come back.
    """

    # What the engine's process runs, with the number of its end of the pipe as the argument.
    process_module = "pageport.engine.process"

    info: EngineInfo
    tokenizer: Tokenizer
    chat_template: ChatTemplate

    def __init__(self, config: EngineConfig, *, restarts: bool = False) -> None:
        self.config = config
        self._restarts = restarts
        self._restart_delay_s = FIRST_RESTART_DELAY_S
        self._ready_at = 0.0
        self._pending_restart: asyncio.TimerHandle | None = None
        self.stats = EngineStats()
        self._ended_stats: EngineStats | None = None  # of the processes before this one
        self.error: str | None = None
        self._streams: dict[str, asyncio.Queue[list[ChoiceDelta] | PageportError]] = {}
        self._last_progress = time.monotonic()
        self._longest_step_s: float | None = None
        self._ready: asyncio.Future[EngineInfo] | None = None
        self._blocks: asyncio.Future[tuple[bytes, ...]] | None = None
        self._on_loading: Callable[[int, int], None] | None = None
        self._closing = False
        self._status = StatusLog()

    @classmethod
    async def start(
        cls, config: EngineConfig, on_loading: Callable[[int, int], None] | None = None, *, restarts: bool = False
    ) -> "AsyncEngine":
        """Start the engine process and return when it takes requests.

        Args:
            on_loading: ``on_loading(done, total)`` hears of loaded weight matrices.
            restarts: start the process again, ever later, when it dies after this. Requests it had end with
                ``EngineDead``, and so do new ones until it is ready; ``error`` is None again then.

        Raises:
            PageportError: it cannot start, in one sentence.
        """
        engine = cls(config, restarts=restarts)
        try:
            await engine._start(on_loading)
        except BaseException:
            await engine.close()
            raise
        return engine

    async def _start(self, on_loading: Callable[[int, int], None] | None) -> None:
        loop = asyncio.get_running_loop()
        self._on_loading = on_loading
        # Resolve here first: a missing model should not cost a process.
        model = self.config.model
        path = await asyncio.to_thread(resolve_model, model.model, model.revision, allow_pickle=model.allow_pickle)
        self._ready = loop.create_future()
        self._spawn(loop)
        # The tokenizer loads while the engine does.
        home = Path(model.tokenizer) if model.tokenizer else path
        self.tokenizer = await asyncio.to_thread(load_tokenizer, home)
        self.chat_template = ChatTemplate(self.tokenizer.chat_template, self.tokenizer)
        self._take(await self._ready)
        self._outputs = OutputProcessor(self.tokenizer)

    def _take(self, info: EngineInfo) -> None:
        """Serve with an engine that has just become ready."""
        self.info = info.with_end_tokens(self.tokenizer.eos_token_ids)
        self._inputs = InputProcessor(self.tokenizer, self.info, self.config.backend.seed)
        self._ready_at = self._last_progress = time.monotonic()
        self._set_stats(EngineStats(kv_blocks_total=sum(info.num_blocks)))
        self.error = None

    def _spawn(self, loop: asyncio.AbstractEventLoop) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self.process_module, str(theirs.fileno())], pass_fds=[theirs.fileno()]
            )
        self._channel = Channel.from_fd(ours.detach())
        self._channel.send(Start(self.config))
        threading.Thread(target=self._read, args=(loop, self._channel), daemon=True, name="engine-reader").start()

    def prepare(
        self,
        prompt: str | list[int],
        params: SamplingParams | BeamSearchParams,
        *,
        request_id: str,
        priority: int = 0,
        timeout_s: float | None = None,
        cache_salt: str | None = None,
        add_special_tokens: bool = True,
    ) -> EngineRequest:
        """Encode and check a prompt.

        Raises:
            RequestError: it cannot be served as asked.
            EngineDead: nothing can.
        """
        if self.error is not None:
            raise EngineDead(self.error)
        return self._inputs.process(
            prompt,
            params,
            request_id=request_id,
            priority=priority,
            timeout_s=timeout_s,
            cache_salt=cache_salt,
            add_special_tokens=add_special_tokens,
        )

    async def stream(self, request: EngineRequest) -> AsyncGenerator[list[ChoiceDelta], None]:
        """Run a prepared request and yield what is new, until every choice has ended.

        What came while the reader was busy comes together, in order: a reader who is behind catches up in one go.
        Closing the generator aborts the request.

        Raises:
            EngineOverloaded: its queue is full.
            EngineDead: the engine process ended meanwhile.
        """
        if self.error is not None:
            raise EngineDead(self.error)
        deltas: asyncio.Queue[list[ChoiceDelta] | PageportError] = asyncio.Queue()
        self._streams[request.request_id] = deltas
        if len(self._streams) == 1:
            self._last_progress = time.monotonic()
        self._outputs.add(request)
        self._send(Add(request))
        try:
            while not self._outputs.is_finished(request.request_id) or not deltas.empty():
                together, failure = take_all(await deltas.get(), deltas)
                if together:
                    yield together
                if failure is not None:
                    raise failure
        finally:
            del self._streams[request.request_id]
            if not self._outputs.is_finished(request.request_id):
                self._send(Abort(request.request_id))
            self._outputs.forget(request.request_id)

    async def generate(
        self, prompt: str | list[int], params: SamplingParams | BeamSearchParams, **options: Any
    ) -> AsyncGenerator[list[ChoiceDelta], None]:
        """``prepare`` and ``stream`` in one."""
        request = self.prepare(prompt, params, **options)
        async with aclosing(self.stream(request)) as stream:
            async for deltas in stream:
                yield deltas

    async def block_states(self) -> tuple[bytes, ...]:
        """Ask, between two steps, what each block of the cache is used for: a ``BlockState`` each, by cache group.

        Raises:
            EngineDead: nobody can tell.
        """
        if self.error is not None:
            raise EngineDead(self.error)
        if self._blocks is None:
            self._blocks = asyncio.get_running_loop().create_future()
            self._send(ShowBlocks())
        return await asyncio.shield(self._blocks)

    def is_stalled(self, patience_s: float) -> bool:
        """Are requests open, and has no step ended for longer than steps take?

        ``patience_s`` is what any engine gets; one whose steps are long gets several of them.
        """
        longest_s = UNKNOWN_STEP_S if self._longest_step_s is None else self._longest_step_s
        return self._silence_s() > max(patience_s, STALL_STEPS * longest_s)

    def _silence_s(self) -> float:
        return time.monotonic() - self._last_progress if self._streams else 0.0

    async def close(self) -> None:
        """End the engine process; open streams end with ``EngineDead``, at once."""
        self._closing = True
        if not self._is_starting:
            self._fail("The engine was closed: the server is being stopped. Send the request again.")
        if self._pending_restart is not None:
            self._pending_restart.cancel()
        if not hasattr(self, "_process"):
            return
        self._send(Close())
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._process.wait, CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._channel.close()

    def _send(self, command: Add | Abort | ShowBlocks | Close) -> None:
        # A dead engine is noticed by the reader, which tells every open stream.
        with suppress(OSError):
            self._channel.send(command)

    def _read(self, loop: asyncio.AbstractEventLoop, channel: Channel) -> None:
        """Reader thread: hand each report to the event loop until the engine is gone."""
        with suppress(RuntimeError):  # the loop may be closed before the engine is
            while True:
                try:
                    report = channel.receive()
                except EOFError:
                    loop.call_soon_threadsafe(self._on_end)
                    return
                loop.call_soon_threadsafe(self._on_report, report)

    def _on_report(self, report: object) -> None:
        # What counted as a stall is no measure of a step.
        if isinstance(report, StepOutputs) and not self.is_stalled(0.0):
            self._longest_step_s = max(self._longest_step_s or 0.0, self._silence_s())
        self._last_progress = time.monotonic()
        if isinstance(report, StepOutputs):
            self._on_step(report)
        elif isinstance(report, Loading):
            if self._on_loading is not None:
                self._on_loading(report.done, report.total)
        elif isinstance(report, Ready):
            if self._is_starting:
                assert self._ready is not None
                self._ready.set_result(report.info)
            else:
                self._take(report.info)
                logger.info("The engine is ready again.")
        elif isinstance(report, Refused):
            self._tell(report.request_id, report.error)
        elif isinstance(report, Blocks):
            blocks, self._blocks = self._blocks, None
            if blocks is not None:
                blocks.set_result(report.states)
        elif isinstance(report, Failed):
            self._fail(report.reason)

    def _on_step(self, step: StepOutputs) -> None:
        self._set_stats(step.stats)
        line = self._status.line(self.stats)
        if line is not None:
            logger.info("%s", line)
        for request_id, error in step.refused.items():
            self._tell(request_id, error)
        by_request: dict[str, list[ChoiceDelta]] = {}
        for delta in self._outputs.process(step.outputs):
            by_request.setdefault(delta.request_id, []).append(delta)
        for request_id, index in self._outputs.take_aborts():
            self._send(Abort(request_id, index, FinishReason.STOP))
        for request_id, deltas in by_request.items():
            self._tell(request_id, deltas)

    def _set_stats(self, stats: EngineStats) -> None:
        self.stats = stats if self._ended_stats is None else stats.after(self._ended_stats)

    def _tell(self, request_id: str, item: list[ChoiceDelta] | PageportError) -> None:
        if request_id in self._streams:
            self._streams[request_id].put_nowait(item)

    def _on_end(self) -> None:
        if self._closing:
            return
        status = self._process.wait()
        how = f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
        if not self._restarts or self._is_starting:
            self._fail(f"The engine process {how}. Restart the server; its log says more.")
            return
        self._fail(f"The engine process {how}. It is started again; retry in a moment.")
        self._restart_later()

    def _restart_later(self) -> None:
        if time.monotonic() - self._ready_at > STABLE_AFTER_S:
            self._restart_delay_s = FIRST_RESTART_DELAY_S
        loop = asyncio.get_running_loop()
        self._pending_restart = loop.call_later(self._restart_delay_s, self._restart, loop)
        self._restart_delay_s = min(2 * self._restart_delay_s, LONGEST_RESTART_DELAY_S)

    def _restart(self, loop: asyncio.AbstractEventLoop) -> None:
        self._channel.close()
        try:
            self._spawn(loop)
        except OSError as error:
            logger.error("The engine process cannot be started: %s.", error)
            self._restart_later()

    @property
    def _is_starting(self) -> bool:
        """Is this the first start, which somebody waits for?"""
        return self._ready is not None and not self._ready.done()

    def _fail(self, reason: str) -> None:
        is_new = self.error is None or self._restarts  # without restarts, only the first reason is one
        if self.error is None:
            self.error = reason
            num_open = self._outputs.num_open_choices if self._streams else 0
            self.stats = self._ended_stats = self.stats.at_death(num_open)
        if is_new and not (self._closing or self._is_starting):
            logger.error("%s", reason)
        if self._ready is not None and self._is_starting:
            self._ready.set_exception(PageportError(reason))
        for deltas in self._streams.values():
            deltas.put_nowait(EngineDead(self.error))
        blocks, self._blocks = self._blocks, None
        if blocks is not None:
            blocks.set_exception(EngineDead(self.error))
            blocks.exception()  # whoever asked may have left


def take_all(
    first: list[ChoiceDelta] | PageportError, waiting: "asyncio.Queue[list[ChoiceDelta] | PageportError]"
) -> tuple[list[ChoiceDelta], PageportError | None]:
    """Join ``first`` and all that waits behind it, up to a failure."""
    together: list[ChoiceDelta] = []
    item = first
    while not isinstance(item, PageportError):
        together += item
        if waiting.empty():
            return together, None
        item = waiting.get_nowait()
    return together, item
