"""``EventServer``: a completions endpoint that streams one letter a token, at a pace, and remembers what was asked."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class EventServer:
    """What it does, and what it saw."""

    interval_s: float = 0.0
    chunked: bool = True
    # A chunk of the transfer coding ends after so many bytes, wherever in a line that is.
    chunk_bytes: int = 50
    missing_tokens: int = 0
    status: int = 200
    error_after: int | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    most_at_once: int = 0
    url: str = ""
    _running: int = 0

    @asynccontextmanager
    async def listen(self) -> AsyncIterator["EventServer"]:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        async with server:
            self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            yield self

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(line.split(":")[1]) for line in head.split("\r\n") if line.startswith("Content-Length"))
        body = json.loads(await reader.readexactly(length))
        self.bodies.append(body)
        self._running += 1
        self.most_at_once = max(self.most_at_once, self._running)
        coding = "Transfer-Encoding: chunked\r\n" if self.chunked else ""
        writer.write(f"HTTP/1.1 {self.status} X\r\n{coding}Content-Type: text/event-stream\r\n\r\n".encode())
        async for event in self._events(body):
            await self._send(writer, event)
        self._running -= 1
        if self.chunked:
            writer.write(b"0\r\n\r\n")
        writer.close()

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any] | str]:
        if self.status != 200:
            yield {"error": {"message": "no such model"}}
            return
        count = body["max_tokens"] - self.missing_tokens
        for index in range(count):
            await asyncio.sleep(self.interval_s)
            if index == self.error_after:
                yield {"error": {"message": "out of memory"}}
                return
            yield {"choices": [{"text": "a", "finish_reason": None}]}
        yield {"choices": [{"text": "", "finish_reason": "length"}]}
        yield {"choices": [], "usage": {"prompt_tokens": len(body["prompt"]), "completion_tokens": count}}
        yield "[DONE]"

    async def _send(self, writer: asyncio.StreamWriter, event: dict[str, Any] | str) -> None:
        data = b"data: " + (event if isinstance(event, str) else json.dumps(event)).encode() + b"\n\n"
        pieces = [data[i : i + self.chunk_bytes] for i in range(0, len(data), self.chunk_bytes)]
        for piece in pieces:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece) if self.chunked else piece)
        await writer.drain()
