"""``Channel``: framed, pickled messages between the API process and the engine process, both ours."""

from dataclasses import dataclass
from multiprocessing.connection import Connection

from pageport.config import EngineConfig
from pageport.engine.messages import EngineInfo, EngineRequest, StepOutputs
from pageport.errors import PageportError
from pageport.scheduling.request import FinishReason


@dataclass(frozen=True)
class Start:
    """To the engine, first: load and get ready."""

    config: EngineConfig


@dataclass(frozen=True)
class Add:
    """To the engine: queue a request."""

    request: EngineRequest


@dataclass(frozen=True)
class Abort:
    """To the engine: end a request, or one choice of it; ``reason`` is what is counted."""

    request_id: str
    index: int | None = None
    reason: FinishReason = FinishReason.ABORT


@dataclass(frozen=True)
class ShowBlocks:
    """To the engine: tell what every block of the cache is used for."""


@dataclass(frozen=True)
class Close:
    """To the engine: give everything back and exit."""


@dataclass(frozen=True)
class Loading:
    """From the engine: ``done`` of ``total`` weight matrices are loaded."""

    done: int
    total: int


@dataclass(frozen=True)
class Ready:
    """From the engine: it takes requests."""

    info: EngineInfo


@dataclass(frozen=True)
class Refused:
    """From the engine: it did not take a request, and why."""

    request_id: str
    error: PageportError


@dataclass(frozen=True)
class Blocks:
    """From the engine: a ``BlockState`` for each block, by cache group."""

    states: tuple[bytes, ...]


@dataclass(frozen=True)
class Failed:
    """From the engine, last: why it cannot start or go on, in one sentence."""

    reason: str


Command = Start | Add | Abort | ShowBlocks | Close
Report = Loading | Ready | Refused | Blocks | Failed | StepOutputs


class Channel:
    """One end of a duplex pipe. ``receive`` raises ``EOFError`` when the other process is gone."""

    def __init__(self, connection: "Connection[object, object]") -> None:
        self._connection = connection

    @classmethod
    def from_fd(cls, fd: int) -> "Channel":
        return cls(Connection(fd))

    def send(self, message: Command | Report) -> None:
        """Send one message.

        Raises:
            OSError: the other process is gone.
        """
        self._connection.send(message)

    def receive(self) -> object:
        """Wait for a message.

        Raises:
            EOFError: the other process is gone.
        """
        try:
            return self._connection.recv()
        except OSError as error:
            raise EOFError from error

    def close(self) -> None:
        self._connection.close()
