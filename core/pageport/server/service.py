"""``Service``: what every route needs."""

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from fastapi import Request
from pydantic import BaseModel, ValidationError

from pageport.engine.async_engine import AsyncEngine
from pageport.errors import InvalidParameter
from pageport.server.admission import Admission
from pageport.server.config import ServerConfig
from pageport.server.drain import Drain
from pageport.server.errors import UnknownModel, invalid_body, quote
from pageport.server.extensions import Extensions
from pageport.server.limits import check_limits
from pageport.server.metrics import Metrics
from pageport.server.metrics_sinks import SinkWriter, close_sinks
from pageport.server.protocol.body import RequestBody
from pageport.server.request_body import read_body
from pageport.server.response_store import ResponseStore
from pageport.server.tracing import Tracing

logger = logging.getLogger(__name__)

# Fields that change nothing here, and whose absence no client would notice.
HARMLESS_FIELDS = frozenset(
    {
        "background_options",
        "max_tool_calls",
        "metadata",
        "modalities",  # what other endpoints have; the chat endpoint checks it
        "moderation",
        "parallel_tool_calls",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning",
        "reasoning_effort",
        "request_id",
        "safety_identifier",
        "service_tier",
        "session_id",
        "store",
        "user",
        "verbosity",
    }
)
# Fields that would change the answer; ignoring one would answer another question.
UNSUPPORTED_FIELDS = frozenset(
    {
        "access_programs",
        "audio",
        "context_management",
        "conversation",
        "function_call",
        "functions",
        "image",
        "logprob_token_ids",
        "logits_processors",
        "mm_processor_kwargs",
        "prompt_embeds",
        "repetition_detection",
        "return_token_ids",
        "return_tokens_as_token_ids",
        "suffix",
        "thinking_token_budget",
        "truncation_side",
        "web_search_options",
    }
)
# Names are chosen by clients: remember only so many.
MAX_REMEMBERED_FIELDS = 256

# Longer bodies are read and checked in threads, so that streams go on meanwhile; a hop there costs some 0.1 ms.
LONG_BODY_BYTES = 8192
# Few: what is computed there is taken from the engine.
NUM_THREADS = 2

Body = TypeVar("Body", bound=RequestBody)
Checked = TypeVar("Checked")


@dataclass(frozen=True, kw_only=True)
class Service:
    """One application's engine, settings and counters."""

    engine: AsyncEngine
    config: ServerConfig
    metrics: Metrics
    created: int  # Unix time, seconds
    admission: Admission
    responses: ResponseStore
    tracing: Tracing | None = None
    drain: Drain = field(default_factory=Drain)
    extensions: Extensions = field(default_factory=Extensions.load)
    _sinks: list[SinkWriter] = field(default_factory=list)
    _ignored_fields: set[str] = field(default_factory=set)
    _threads: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(NUM_THREADS, "long-requests"))

    def __post_init__(self) -> None:
        self._sinks.extend(SinkWriter(sink, self.metrics.registry) for sink in self.extensions.metrics_sinks.values())

    @property
    def model_name(self) -> str:
        return self.engine.info.model_name

    def close(self) -> None:
        """Drop what waits for a thread: nobody is left to hear of it, and a process ends when its threads are done.

        Metrics are written a last time, and traces sent.
        """
        self._threads.shutdown(wait=False, cancel_futures=True)
        close_sinks(self._sinks)
        if self.tracing is not None:
            self.tracing.close()

    async def read(self, request: Request, kind: type[Body]) -> Body:
        """Read and check the JSON body of ``request``: ``build`` without anything to make of it."""
        return await self.build(request, kind, lambda service, body: body)

    async def build(self, request: Request, kind: type[Body], make: Callable[["Service", Body], Checked]) -> Checked:
        """Read and check the JSON body of ``request`` and return what ``make(service, body)`` makes of it.

        ``make`` may take its time, and is called in a thread then. The content type is not looked at; bytes that are
        not UTF-8 and lone surrogates are refused.

        Raises:
            InvalidParameter: the body is no JSON object, or a field is wrong or not supported.
            BodyTooLong: more bytes than the settings allow.
            UnknownModel: the model is not served here. An absent or null model means the one that is.
            ServerDraining: the server ends meanwhile.
        """
        data = await read_body(request, self.config.max_body_bytes)
        if len(data) <= LONG_BODY_BYTES:
            return make(self, self._parse(data, kind))
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(self._threads, lambda: make(self, self._parse(data, kind)))
        return await self.drain.unless_over(work)

    def _parse(self, data: bytes, kind: type[Body]) -> Body:
        try:
            body = kind.model_validate_json(data)
        except ValidationError as error:
            raise invalid_body(error) from None
        if body.model is not None and body.model != self.model_name:
            raise UnknownModel(body.model, self.model_name)
        self._check_extra_fields(body)
        check_limits(body, self.config)
        return body

    def _check_extra_fields(self, body: BaseModel) -> None:
        for name, value in (body.model_extra or {}).items():
            if name in HARMLESS_FIELDS or value is None:
                continue
            if name in UNSUPPORTED_FIELDS:
                # An empty value asks for nothing.
                if value:
                    raise not_supported(name)
            elif self.config.strict_requests:
                raise InvalidParameter(
                    f"There is no field {quote(name)} here, and this server refuses what it does not know. "
                    "Leave it out, or start the server without --strict-requests.",
                    name,
                )
            elif name not in self._ignored_fields and len(self._ignored_fields) < MAX_REMEMBERED_FIELDS:
                self._ignored_fields.add(name)
                logger.warning("Ignoring the unknown request field %s.", quote(name))


def not_supported(field_name: str, what: str = "") -> InvalidParameter:
    """Say that a field is understood but cannot be honoured yet; ``what`` is its value, when others can be."""
    asked = f"{field_name} {what}" if what else field_name
    return InvalidParameter(f"{asked} is not supported yet. Leave it out.", field_name)


def service_of(request: Request) -> Service:
    """Return the service of the application that got ``request``."""
    return service_of_app(request.app)


def service_of_app(app: Any) -> Service:
    """Return the service of an application."""
    return cast(Service, app.state.service)
