"""API keys: every route is closed but the ones listed here."""

import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from pageport.server.api_keys import ApiKey
from pageport.server.errors import unauthorized_response

# Probes carry no key, and these answers hold nothing but one word.
OPEN_PATHS = frozenset({"/health", "/ready"})


class ApiKeys:
    """ASGI middleware that lets a request through only with one of ``keys``.

    Others find the name of its key as ``scope["state"]["client"]``.
    """

    def __init__(self, app: ASGIApp, keys: Sequence[ApiKey]) -> None:
        self._app = app
        self._digests = [(key.name, hashlib.sha256(key.key.encode()).digest()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or route_path(scope) in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        name = self._name_of_key(scope)
        if name is None:
            await unauthorized_response()(scope, receive, send)
            return
        scope.setdefault("state", {})["client"] = name
        await self._app(scope, receive, send)

    def _name_of_key(self, scope: Scope) -> str | None:
        values = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(values) != 1:
            return None
        scheme, _, key = values[0].partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        digest = hashlib.sha256(key.strip()).digest()
        # All keys are compared, whichever matches: the time tells nothing.
        matches = [name for name, known in self._digests if hmac.compare_digest(digest, known)]
        return matches[0] if matches else None


def route_path(scope: Scope) -> str:
    """Return the path that is matched against the routes: without the proxy's prefix."""
    path: str = scope["path"]
    prefix: str = scope.get("root_path", "")
    return path.removeprefix(prefix) if prefix and path.startswith(prefix + "/") else path
