"""``LocalServer``: the HTTP application around an engine in this process, so that starting one costs milliseconds."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import httpx

from pageport.engine.llm import LLM
from pageport.engine.messages import EngineRequest, EngineStats
from pageport.engine.outputs import ChoiceDelta
from pageport.server.app import create_app
from pageport.server.config import ServerConfig
from pageport.text.chat import ChatTemplate

from ..server.conftest import ask, events
from .engine_drive import EngineDrive

PATHS = ("/v1/completions", "/v1/chat/completions")


class LocalEngine:
    """What ``AsyncEngine`` is to a server: whoever waits for text steps the engine for everybody."""

    def __init__(self, llm: LLM, drive: EngineDrive) -> None:
        self.info = llm.info
        self.tokenizer = llm.get_tokenizer()
        self.chat_template = ChatTemplate(self.tokenizer.chat_template, self.tokenizer)
        self.error: str | None = None
        self.aborted: list[str] = []
        self._drive = drive
        self._arrived: dict[str, list[ChoiceDelta]] = {}

    @property
    def stats(self) -> EngineStats:
        return self._drive.stats

    def prepare(self, prompt: str | list[int], params: Any, **options: Any) -> EngineRequest:
        return self._drive.prepare(prompt, params, **options)

    async def stream(self, request: EngineRequest) -> AsyncGenerator[list[ChoiceDelta], None]:
        request_id, drive = request.request_id, self._drive
        self._arrived[request_id] = []
        drive.start(request)
        try:
            while self._arrived[request_id] or not drive.is_finished(request_id):
                if self._arrived[request_id]:
                    deltas, self._arrived[request_id] = self._arrived[request_id], []
                    yield deltas
                else:
                    for delta in drive.step():
                        self._arrived[delta.request_id].append(delta)
                await asyncio.sleep(0)
        finally:
            if not drive.is_finished(request_id):
                self.aborted.append(request_id)
                drive.abort(request_id)
            drive.forget(request_id)
            del self._arrived[request_id]

    def is_stalled(self, patience_s: float) -> bool:
        return False


class LocalServer:
    """Answers requests one by one or all at once."""

    def __init__(self, llm: LLM, **settings: Any) -> None:
        self.llm = llm
        self.drive = EngineDrive(llm)
        self.engine = LocalEngine(llm, self.drive)
        self.app = create_app(self.engine, ServerConfig(**settings))  # type: ignore[arg-type]  # the engine's double

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.post_all([(path, body)])[0]

    def get(self, path: str) -> httpx.Response:
        return ask(self.app, "GET", path)

    def post_all(self, requests: list[tuple[str, dict[str, Any]]]) -> list[httpx.Response]:
        """Send requests at the same time."""

        async def send() -> list[httpx.Response]:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return list(await asyncio.gather(*(client.post(path, json=body) for path, body in requests)))

        return asyncio.run(send())

    def say(self, path: str, prompt: str = "a", *, stream: bool = False, **fields: Any) -> "Said":
        """Ask either endpoint the same thing; the answer must be a success."""
        asked: dict[str, Any] = (
            {"prompt": prompt} if path == PATHS[0] else {"messages": [{"role": "user", "content": prompt}]}
        )
        response = self.post(path, **asked, temperature=0, stream=stream, **fields)
        assert response.status_code == 200, response.text
        if not stream:
            body = response.json()
            (choice,) = body["choices"]
            return Said([_text(choice, "message")], choice["finish_reason"], body["usage"]["completion_tokens"])
        *chunks, done = events(response)
        assert done == "[DONE]"
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        (reason,) = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
        usages = [chunk["usage"] for chunk in chunks if chunk.get("usage")]
        return Said(
            [_text(choice, "delta") for choice in choices], reason, usages[-1]["completion_tokens"] if usages else None
        )


class Said:
    """The texts of one choice as they came, why it ended, and how many tokens it took where that was told."""

    def __init__(self, texts: list[str], finish_reason: str, num_tokens: int | None) -> None:
        self.texts = texts
        self.text = "".join(texts)
        self.finish_reason = finish_reason
        self.num_tokens = num_tokens


def _text(choice: dict[str, Any], key: str) -> str:
    return choice["text"] if "text" in choice else choice[key].get("content") or ""
