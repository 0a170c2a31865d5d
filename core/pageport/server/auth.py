"""API keys: every route is closed but the ones listed here."""

import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from pageport.server.config import clean_key
from pageport.server.errors import unauthorized_response

# Probes carry no key, and these answers hold nothing but one word.
OPEN_PATHS = frozenset({"/health", "/ready"})


class ApiKeys:
    """ASGI middleware that lets a request through only with one of ``keys``."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = [hashlib.sha256(clean_key(key).encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or route_path(scope) in OPEN_PATHS or self._is_authorized(scope):
            await self._app(scope, receive, send)
            return
        await unauthorized_response()(scope, receive, send)

    def _is_authorized(self, scope: Scope) -> bool:
        values = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(values) != 1:
            return False
        scheme, _, key = values[0].partition(b" ")
        if scheme.lower() != b"bearer":
            return False
        digest = hashlib.sha256(key.strip()).digest()
        # All keys are compared, whichever matches: the time tells nothing.
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches)


def route_path(scope: Scope) -> str:
    """Return the path that is matched against the routes: without the proxy's prefix."""
    path: str = scope["path"]
    prefix: str = scope.get("root_path", "")
    return path.removeprefix(prefix) if prefix and path.startswith(prefix + "/") else path
