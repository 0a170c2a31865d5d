"""``RequestIds``: one name for a request, in the client's log, a proxy's and ours."""

import re
import uuid

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "X-Request-Id"
# What can stand in a log line or a header without doing anything there.
SANE = re.compile(rb"[A-Za-z0-9._:/+=@-]{1,128}")


class RequestIds:
    """ASGI middleware that answers every request with its id: the client's own if it is sane, or a fresh one.

    Routes find it as ``request.state.request_id``.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _given_id(scope) or uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id

        async def name(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        await self._app(scope, receive, name)


def _given_id(scope: Scope) -> str | None:
    values = [value for name, value in scope["headers"] if name == HEADER.lower().encode()]
    return values[0].decode() if len(values) == 1 and SANE.fullmatch(values[0]) else None
