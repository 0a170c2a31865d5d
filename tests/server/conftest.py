"""A scripted engine, so that the protocol can be tested without a model."""

import asyncio
import atexit
import codecs
import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import IO, Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as BackendTokenizer

from pageport.engine.input_processor import InputProcessor
from pageport.engine.messages import EngineInfo, EngineRequest, EngineStats
from pageport.engine.outputs import ChoiceDelta, Logprob
from pageport.errors import EngineDead
from pageport.server.app import create_app
from pageport.server.config import ServerConfig
from pageport.text.chat import ChatTemplate
from pageport.text.tokenizer import Tokenizer

CHAT_TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'nobody' %}{{ raise_exception('nobody may not speak') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """One token a byte, whose id is the byte; 256 is ``</s>``."""
    # Byte-level tokenizers write a byte as the character of its number, or, where that is not visible, as the next
    # one from 256 on.
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in visible]
    vocabulary = {chr(byte if byte in visible else 256 + hidden.index(byte)): byte for byte in range(256)}
    backend = BackendTokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("</s>", special=True)])
    return Tokenizer(backend, special_tokens={"eos_token": "</s>"})


class ScriptedEngine:
    """What ``AsyncEngine`` is to a server. Every choice says ``text``, one token a step.

    ``fail_after`` steps the engine dies; ``hang_after`` steps nothing more comes.
    """

    def __init__(self, text: str = "hello", *, fail_after: int | None = None, hang_after: int | None = None) -> None:
        self.tokenizer = byte_tokenizer()
        self.chat_template: ChatTemplate | None = ChatTemplate(CHAT_TEMPLATE, self.tokenizer)
        self.info = EngineInfo(
            model_name="org/tiny",
            architecture="Tiny",
            vocab_size=257,
            max_model_len=128,
            max_request_tokens=128,
            max_num_seqs=8,
            block_size=16,
            num_blocks=(64,),
            eos_token_ids=frozenset({256}),
            dtype="float32",
            backend="scripted",
        )
        self.stats = EngineStats()
        self.error: str | None = None
        self.stalled_s = 0.0
        self.blocks = (bytes(64),)
        self.text = text
        self.fail_after = fail_after
        self.hang_after = hang_after
        self.requests: list[EngineRequest] = []
        self.aborted: list[str] = []
        self._inputs = InputProcessor(self.tokenizer, self.info, 0)

    def prepare(self, prompt: str | list[int], params: Any, **options: Any) -> EngineRequest:
        return self._inputs.process(prompt, params, **options)

    async def stream(self, request: EngineRequest) -> AsyncGenerator[list[ChoiceDelta], None]:
        self.requests.append(request)
        is_finished = False
        try:
            for step, deltas in enumerate(self._script(request)):
                if step == self.fail_after:
                    raise EngineDead("The engine process was killed by signal 9.")
                if step == self.hang_after:
                    await asyncio.Event().wait()
                await asyncio.sleep(0)
                yield deltas
            is_finished = True
        finally:
            if not is_finished:
                self.aborted.append(request.request_id)

    async def block_states(self) -> tuple[bytes, ...]:
        if self.error is not None:
            raise EngineDead(self.error)
        return self.blocks

    def is_stalled(self, patience_s: float) -> bool:
        return self.stalled_s > patience_s

    def _script(self, request: EngineRequest) -> Iterator[list[ChoiceDelta]]:
        token_ids = [*self.tokenizer.encode(self.text), 256]
        num_tokens = min(len(token_ids), request.max_tokens)
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        for step in range(num_tokens):
            token_id, is_last = token_ids[step], step == num_tokens - 1
            text = "" if token_id == 256 else decode(self.tokenizer.token_bytes(token_id), is_last)
            reason = ("stop" if token_id == 256 else "length") if is_last else None
            deltas = [self._delta(request, i, token_id, text, reason) for i in range(request.sampling.n)]
            if step == 0:
                deltas[0].num_cached_tokens = 0
                if request.sampling.pooling is not None:
                    deltas[0].pooled = [3.0, -4.0, 12.0]
                if request.sampling.prompt_logprobs is not None:
                    scored: list[Any] = [self._candidates(token) for token in request.prompt_token_ids]
                    deltas[0].prompt_logprobs = [None, *scored[1:]]
            yield deltas

    def _delta(self, request: EngineRequest, index: int, token_id: int, text: str, reason: str | None) -> ChoiceDelta:
        logprobs = None if request.sampling.logprobs is None else [self._candidates(token_id)]
        return ChoiceDelta(
            request_id=request.request_id,
            index=index,
            text=text,
            token_ids=[token_id],
            logprobs=logprobs,
            finish_reason=reason,
        )

    def _candidates(self, token_id: int) -> dict[int, Logprob]:
        return {token_id: Logprob(-0.5, 1, "x"), (token_id + 1) % 256: Logprob(float("-inf"), 2, "y")}


@pytest.fixture
def engine() -> ScriptedEngine:
    return ScriptedEngine()


def app_for(engine: ScriptedEngine, **settings: Any) -> FastAPI:
    return create_app(engine, ServerConfig(**settings))  # type: ignore[arg-type]  # the engine's double


def ask(app: FastAPI, method: str, path: str, **arguments: Any) -> httpx.Response:
    """Send one request to ``app`` and return the whole answer."""

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.request(method, path, **arguments)

    return asyncio.run(send())


Post = Callable[..., httpx.Response]


@pytest.fixture
def complete(engine: ScriptedEngine) -> Post:
    app = app_for(engine)
    return lambda **body: ask(app, "POST", "/v1/completions", json={"prompt": "ab", **body})


@pytest.fixture
def chat(engine: ScriptedEngine) -> Post:
    app = app_for(engine)
    messages = [{"role": "user", "content": "hi"}]
    return lambda **body: ask(app, "POST", "/v1/chat/completions", json={"messages": messages, **body})


def events(response: httpx.Response) -> list[Any]:
    """Parse a stream strictly: nothing but data lines, each followed by an empty one."""
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("\n\n")
    lines = response.text[:-2].split("\n\n")
    assert all(line.startswith("data: ") and "\n" not in line for line in lines)
    return [line[6:] if line == "data: [DONE]" else json.loads(line[6:]) for line in lines]


class ServerProcess:
    """``pageport serve`` on a free port, ready for requests. It ends with the tests if none stops it."""

    def __init__(self, model: str, *options: str, log: IO[str] | None = None) -> None:
        """Start it; ``log`` is where it writes to, instead of what ``stop`` returns."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [sys.executable, "-m", "pageport", "serve", "--model", model, "--port", str(port), *options]
        self.process = subprocess.Popen(command, stdout=log, stderr=log or subprocess.PIPE, text=True)
        atexit.register(self.process.kill)
        self.url = f"http://127.0.0.1:{port}"
        self._stderr: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_until_ready(self, timeout_s: float = 120.0) -> "ServerProcess":
        """Return once ``/health`` answers 200."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.url}/health").status_code == 200:
                    return self
            time.sleep(0.05)
        raise AssertionError(f"the server did not start: {self.stop()}")

    def metrics(self) -> dict[str, float]:
        """Scrape the server; keys are a sample's name, then its labels' values."""
        return samples(httpx.get(f"{self.url}/metrics").text)

    def wait_until_idle(self, timeout_s: float = 10.0) -> dict[str, float]:
        """Return the metrics once no request runs or waits and no block is held."""
        deadline = time.monotonic() + timeout_s
        while True:
            seen = self.metrics()
            busy = [seen[f"pageport:{name}"] for name in ("requests_running", "requests_waiting", "kv_blocks_used")]
            if not any(busy):
                return seen
            assert time.monotonic() < deadline, f"running, waiting and used blocks are still {busy}"
            time.sleep(0.02)

    def stop(self, number: int = signal.SIGTERM, timeout_s: float = 15.0) -> str:
        """Send a signal, wait for the end and return what the server wrote to stderr."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            self.process.wait(timeout_s)
        finally:
            self.process.kill()
            self._reader.join()
            if self.process.stderr is not None:
                self.process.stderr.close()
        return "".join(self._stderr)

    def _read(self) -> None:
        if self.process.stderr is not None:
            self._stderr.extend(self.process.stderr)


def samples(exposition: str) -> dict[str, float]:
    """Parse metrics; keys are a sample's name, then its labels' values."""
    return {
        " ".join([sample.name, *(value for _, value in sorted(sample.labels.items()))]): sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
    }


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    from pageport.testing.tiny_model import write_tiny_llama  # torch: only where a model is served

    return str(write_tiny_llama(tmp_path_factory.mktemp("served") / "tiny"))
