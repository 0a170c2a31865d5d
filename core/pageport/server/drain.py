"""``Drain``: the end of a server that first finishes what it has begun."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from starlette.types import ASGIApp, Receive, Scope, Send

from pageport.server.auth import route_path
from pageport.server.errors import ServerDraining, error_response

# What goes on being answered, and is not waited for: it tells how the drain goes.
PROBES = frozenset({"/health", "/ready", "/metrics"})

T = TypeVar("T")


class Drain:
    """Counts the requests that are being answered; once begun, no more are let in."""

    def __init__(self) -> None:
        self.has_begun = False
        self.num_open = 0
        self._is_empty = asyncio.Event()
        self._is_over = False
        self._told_when_over: set[asyncio.Future[None]] = set()

    def begin(self) -> None:
        """Refuse requests from now on."""
        self.has_begun = True
        if not self.num_open:
            self._is_empty.set()

    def enter(self) -> None:
        """Count a request that has come.

        Raises:
            ServerDraining: it came too late.
        """
        if self.has_begun:
            raise ServerDraining("This server is being stopped and takes no more requests. Send it again.")
        self.num_open += 1

    def leave(self) -> None:
        """Count a request that has been answered."""
        self.num_open -= 1
        if self.has_begun and not self.num_open:
            self._is_empty.set()

    def end(self) -> None:
        """Break off what is still awaited in ``unless_over``."""
        self.has_begun = self._is_over = True
        for over in self._told_when_over:
            over.cancel()

    async def unless_over(self, work: Awaitable[T]) -> T:
        """Await ``work``, but no longer than requests may run.

        Raises:
            ServerDraining: it was broken off.
        """
        working = asyncio.ensure_future(work)
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._told_when_over.add(over)
        try:
            if not self._is_over:
                either: list[asyncio.Future[Any]] = [working, over]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise ServerDraining("This server was stopped before it had read the request. Send it again.")
        finally:
            self._told_when_over.discard(over)
            working.cancel()

    async def finished(self) -> None:
        """Return when it has begun and the last request has been answered."""
        await self._is_empty.wait()


class DrainGate:
    """ASGI middleware that leads every request but probes past ``drain``."""

    def __init__(self, app: ASGIApp, drain: Drain) -> None:
        self._app = app
        self._drain = drain

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or route_path(scope) in PROBES:
            await self._app(scope, receive, send)
            return
        try:
            self._drain.enter()
        except ServerDraining as error:
            await error_response(error)(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._drain.leave()
