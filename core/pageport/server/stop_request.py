"""``StopRequest``: whether, and how urgently, the server is asked to end."""

import asyncio
import signal


class StopRequest:
    """SIGTERM asks for an end after the running requests; SIGINT, or a second SIGTERM, for one now."""

    def __init__(self) -> None:
        self._is_asked = asyncio.Event()
        self._is_urgent = asyncio.Event()

    def listen(self) -> None:
        """Take both signals of this process, in the running event loop."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self.ask)
        loop.add_signal_handler(signal.SIGINT, self.insist)

    def ask(self) -> None:
        """Ask for an end; a second time: for one now."""
        if self._is_asked.is_set():
            self._is_urgent.set()
        self._is_asked.set()

    def insist(self) -> None:
        """Ask for an end now."""
        self._is_asked.set()
        self._is_urgent.set()

    @property
    def is_asked(self) -> bool:
        return self._is_asked.is_set()

    async def asked(self) -> None:
        """Return when an end has been asked for."""
        await self._is_asked.wait()

    async def urgent(self) -> None:
        """Return when the end has to be now."""
        await self._is_urgent.wait()
