"""``ClientLimit``: how many requests one client may have open at once."""

from collections import Counter

from starlette.types import ASGIApp, Receive, Scope, Send

from pageport.server.auth import route_path
from pageport.server.drain import PROBES
from pageport.server.errors import TooManyRequests, error_response


class ClientLimit:
    """ASGI middleware that refuses a client's requests beyond ``max_requests`` at once with 429.

    A client is the name of its API key or, where there are none, its address.
    """

    def __init__(self, app: ASGIApp, max_requests: int) -> None:
        self._app = app
        self._max_requests = max_requests
        self._num_open: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or route_path(scope) in PROBES:
            await self._app(scope, receive, send)
            return
        client = client_name(scope)
        if self._num_open[client] >= self._max_requests:
            error = TooManyRequests(
                f"You have {self._max_requests} requests open, the most that one client of this server may have. "
                "Send it again when one is answered."
            )
            await error_response(error)(scope, receive, send)
            return
        self._num_open[client] += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._num_open[client] -= 1
            if not self._num_open[client]:
                del self._num_open[client]


def client_name(scope: Scope) -> str:
    """Name who sent a request: by its API key, else by its address; a unix socket has none."""
    name: str | None = scope.get("state", {}).get("client")
    address = scope.get("client")
    return name or (address[0] if address else "local")
