"""``InProcessClient``: requests to an ASGI application without a port."""

import asyncio
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Scope


class InProcessAnswer(NamedTuple):
    status: int
    request_id: str
    body: bytes


class InProcessClient:
    """Calls the application as an HTTP server would."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def post(self, path: str, body: bytes) -> InProcessAnswer:
        """Send a JSON body and return the whole answer; cancelling this is as if the client left."""
        scope: Scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [
                (b"host", b"batch"),
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
            ],
            "client": ("127.0.0.1", 0),
            "server": ("batch", 80),
        }
        unread = [body]
        status, request_id, parts = 0, "", list[bytes]()

        async def receive() -> Message:
            if unread:
                return {"type": "http.request", "body": unread.pop(), "more_body": False}
            await asyncio.Event().wait()  # this client never leaves
            raise AssertionError("nobody sets this event")

        async def send(message: Message) -> None:
            nonlocal status, request_id
            if message["type"] == "http.response.start":
                status = message["status"]
                request_id = dict(message["headers"]).get(b"x-request-id", b"").decode()
            else:
                parts.append(message.get("body", b""))

        await self._app(scope, receive, send)
        return InProcessAnswer(status, request_id, b"".join(parts))
