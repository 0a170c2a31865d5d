"""Server-sent events, and work that ends when the client leaves."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing, suppress
from typing import TypeVar

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from pageport.errors import PageportError
from pageport.server.errors import error_body, status_of
from pageport.server.protocol.responses import ResponseEvent

logger = logging.getLogger(__name__)

DONE = "data: [DONE]\n\n"
# Proxies must neither keep nor collect what is meant to arrive at once.
STREAM_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
# JSON lets these stand as they are, but many clients split lines at them.
LINE_SEPARATORS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})

T = TypeVar("T")


def event(chunk: BaseModel) -> str:
    """Write one event; fields that were not set are left out."""
    return _event(chunk.model_dump_json(exclude_unset=True))


def named_event(body: ResponseEvent) -> str:
    """Write one event that also says its type outside of its data."""
    return f"event: {body.type}\n{_event(body.model_dump_json())}"


def json_response(body: BaseModel) -> Response:
    """Answer with ``body``; fields that were not set are left out."""
    return Response(body.model_dump_json(exclude_unset=True), media_type="application/json")


async def stream_events(request: Request, events: AsyncGenerator[str, None]) -> Response:
    """Answer with ``events``, once the first is there: what fails before it is a plain HTTP error.

    Raises:
        ClientDisconnect: the client left before the first event.
    """
    first = await until_disconnected(request.receive, anext(events))
    return EventStream(first, events)


async def until_disconnected(receive: Receive, work: Awaitable[T]) -> T:
    """Await ``work``, but cancel it when the client closes the connection.

    Raises:
        ClientDisconnect: it did.
    """
    tasks = asyncio.ensure_future(work), asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not tasks[0].done():
            raise ClientDisconnect
        return tasks[0].result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class EventStream(Response):
    """A response that sends events as they come and closes their generator whatever ends it.

    A failure midway is one last event in the shape of an error answer; ``[DONE]`` does not follow it, since the answer
    is not done.
    """

    media_type = "text/event-stream"

    def __init__(self, first: str, rest: AsyncGenerator[str, None]) -> None:
        self.status_code = 200
        self.background = None
        self._first = first
        self._rest = rest
        self.init_headers(STREAM_HEADERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):
            await until_disconnected(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._rest) as rest:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await _send_text(send, self._first)
            try:
                async for text in rest:
                    await _send_text(send, text)
            except Exception as error:
                if isinstance(error, PageportError):
                    level = logging.ERROR if status_of(error) >= 500 else logging.INFO
                    logger.log(level, "A stream was broken off: %s", error)
                else:
                    logger.exception("A stream was broken off.")
                await _send_text(send, _event(json.dumps(error_body(error))))
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _event(text: str) -> str:
    return f"data: {text if text.isascii() else text.translate(LINE_SEPARATORS)}\n\n"


async def _send_text(send: Send, text: str) -> None:
    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
