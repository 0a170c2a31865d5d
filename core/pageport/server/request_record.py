"""``RequestRecord``: what happened to one HTTP request, for metrics, traces and logs."""

import logging
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pageport.server.client_limit import client_name
from pageport.server.errors import CLIENT_CLOSED_REQUEST

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class GenerationRecord:
    """What the engine did for a request: all its prompts and choices together.

    Moments are ``time.perf_counter()``. ``queued_s`` is how long the first of its prompts that ran had waited in the
    engine. None is what did not happen, or was not asked for.
    """

    response_id: str
    started: float
    model: str
    num_choices: int  # per prompt
    max_tokens: int  # per choice
    seed: int | None
    temperature: float
    top_p: float
    prompts: Sequence[str | list[int]]
    num_prompt_tokens: int
    num_cached_tokens: int | None = None
    num_generated_tokens: int = 0
    longest_choice_tokens: int = 0
    queued_s: float | None = None
    first_token_at: float | None = None
    last_token_at: float | None = None
    finish_reasons: dict[int, str] = field(default_factory=dict)  # by choice
    is_finished: bool = False
    error: str | None = None


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """Filled while the request runs, and whole when it is over.

    ``route`` is the pattern that the path matched, not the path, of which clients can make any number; "none" when it
    leads nowhere. ``client`` is the name of its API key, else its address. ``status`` is 499 when the client left
    before the answer began.
    """

    method: str
    path: str
    headers: Sequence[tuple[bytes, bytes]]
    request_id: str
    arrived_at: float = field(default_factory=time.time)  # Unix time, seconds
    started: float = field(default_factory=time.perf_counter)
    route: str = "none"
    client: str = ""
    status: int = CLIENT_CLOSED_REQUEST
    generation: GenerationRecord | None = None
    ended: float | None = None


RecordObserver = Callable[[RequestRecord], None]

# The request that the running task answers; none where no server does.
current_record: ContextVar[RequestRecord | None] = ContextVar("current_record", default=None)


class RecordRequests:
    """ASGI middleware that keeps a record of every request and shows it to ``observers`` when the request is over.

    Also those requests that other middleware answers.
    """

    def __init__(self, app: ASGIApp, observers: Sequence[RecordObserver]) -> None:
        self._app = app
        self._observers = observers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(
            method=scope["method"],
            path=scope["path"],
            headers=scope["headers"],
            request_id=scope.get("state", {}).get("request_id", ""),
        )

        async def note(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
            await send(message)

        token = current_record.set(record)
        try:
            await self._app(scope, receive, note)
        finally:
            current_record.reset(token)
            record.ended = time.perf_counter()
            record.route = getattr(scope.get("route"), "path", "none")
            record.client = client_name(scope)
            for observe in self._observers:
                self._show(observe, record)

    def _show(self, observe: RecordObserver, record: RequestRecord) -> None:
        try:
            observe(record)
        except Exception:
            # The answer has been given: who watches must not undo it.
            logger.exception("A request could not be recorded.")
