"""Every answer that is not a success, in OpenAI's shape: ``{"error": {message, type, param, code}}``."""

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pageport.errors import (
    EngineDead,
    EngineOverloaded,
    InvalidParameter,
    PageportError,
    RequestError,
    RequestTooLong,
)

logger = logging.getLogger(__name__)

# What a client is told to wait before it asks a server again that is overloaded, ends, or starts its engine again.
RETRY_AFTER_S = 1
# Nobody reads this status: the client is gone. Access logs and metrics show it.
CLIENT_CLOSED_REQUEST = 499
# Longest piece of a client's input that is repeated in a message or a log line, in characters.
MAX_QUOTED = 120


class UnknownModel(RequestError):
    """The request names a model that is not served here: HTTP 404."""

    def __init__(self, requested: str, served: str) -> None:
        super().__init__(f"The model {quote(requested)} does not exist here. This server has {served!r}.", "model")


class UnknownResponse(RequestError):
    """No answer of this id is kept here: HTTP 404."""

    def __init__(self, response_id: str) -> None:
        super().__init__(no_response(response_id), "response_id")


class DeadlineExceeded(PageportError):
    """The request was not finished in its time: HTTP 408. The engine has given it up."""


class TooManyRequests(PageportError):
    """The client has used up what is its own, whatever the server could do: HTTP 429."""


class ServerDraining(PageportError):
    """The server finishes what it has begun and takes nothing new: HTTP 503."""


class GenerationFailed(PageportError):
    """The engine gave up on one request; others go on."""


def no_response(response_id: str) -> str:
    """Say that no answer of an id is kept here."""
    return (
        f"There is no response {quote(response_id)} here: it was not stored, was deleted, or made room for newer ones."
    )


def quote(value: object) -> str:
    """Show a client's value in ASCII and at most ``MAX_QUOTED`` characters."""
    shown = ascii(value)
    return shown if len(shown) <= MAX_QUOTED else shown[:MAX_QUOTED] + "…"


def status_of(error: Exception) -> int:
    """Name the HTTP status that ``error`` is answered with."""
    match error:
        case UnknownModel() | UnknownResponse():
            return 404
        case RequestError():
            return 400
        case DeadlineExceeded():
            return 408
        case TooManyRequests():
            return 429
        case EngineOverloaded() | EngineDead() | ServerDraining():
            return 503
        case HTTPException():
            return error.status_code
        case _:
            return 500


def error_body(error: Exception) -> dict[str, Any]:
    """Build the JSON object that describes ``error``; what is not ours says nothing of the inside."""
    match error:
        case UnknownModel():
            return _body(str(error), "invalid_request_error", "model", "model_not_found")
        case UnknownResponse():
            return _body(str(error), "invalid_request_error", error.parameter, "response_not_found")
        case RequestTooLong():
            return _body(str(error), "invalid_request_error", error.parameter, "context_length_exceeded")
        case RequestError():
            return _body(str(error), "invalid_request_error", error.parameter, "invalid_value")
        case DeadlineExceeded():
            return _body(str(error), "timeout_error", "timeout", "timeout")
        case TooManyRequests():
            return _body(str(error), "requests", None, "rate_limit_exceeded")
        case ServerDraining():
            return _body(str(error), "server_error", None, "server_draining")
        case EngineOverloaded():
            return _body(str(error), "server_error", None, "engine_overloaded")
        case EngineDead():
            return _body(str(error), "server_error", None, "engine_dead")
        case PageportError():
            return _body(str(error), "server_error", None, None)
        case HTTPException() if error.status_code < 500:
            return _body(str(error.detail), "invalid_request_error", None, None)
        case _:
            return _body("The server failed on this request; its log says why.", "server_error", None, None)


def error_response(error: Exception) -> JSONResponse:
    """Answer ``error`` with its status, body and headers."""
    headers = dict(error.headers or {}) if isinstance(error, HTTPException) else {}
    if isinstance(error, EngineOverloaded | EngineDead | ServerDraining | TooManyRequests):
        headers["Retry-After"] = str(RETRY_AFTER_S)
    if isinstance(error, ServerDraining):
        headers["Connection"] = "close"  # the next one should go to another server
    return JSONResponse(error_body(error), status_of(error), headers)


def unauthorized_response() -> JSONResponse:
    """Answer a request that brings no valid key."""
    body = _body(
        "A valid API key is needed: send it as 'Authorization: Bearer KEY'.",
        "invalid_request_error",
        None,
        "invalid_api_key",
    )
    return JSONResponse(body, 401, {"WWW-Authenticate": "Bearer"})


def invalid_body(error: ValidationError) -> InvalidParameter:
    """Turn what pydantic says about a body into one sentence about its first wrong field."""
    problems = error.errors(include_url=False)
    first = problems[0]
    if not first["loc"]:
        return InvalidParameter(f"The request body cannot be read: {first['msg']}. Send a JSON object.")
    field = str(first["loc"][0])
    # A value that fits none of several allowed forms has one problem per form.
    same_field = [problem for problem in problems if problem["loc"][0] == field]
    reasons = dict.fromkeys(problem["msg"].removeprefix("Value error, ") for problem in same_field)
    seen = "" if first["type"] == "missing" else f", not {quote(first['input'])}"
    return InvalidParameter(f"{_path(first['loc'])}: {'; or '.join(reasons)}{seen}.", field)


def install_error_handlers(app: FastAPI) -> None:
    """Make every failure inside ``app`` an answer in OpenAI's shape."""
    for kind in (PageportError, HTTPException):
        app.add_exception_handler(kind, _answer)
    app.add_exception_handler(RequestValidationError, _answer_invalid_argument)
    app.add_exception_handler(ClientDisconnect, _answer_nobody)
    app.add_exception_handler(Exception, _answer)
    app.add_middleware(AnswerFaults)


class AnswerFaults:
    """ASGI middleware that answers what nobody foresaw, so that middleware around it sees an answer as any other."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def note(message: Message) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, note)
        except Exception as error:
            if has_begun or scope["type"] != "http":
                raise
            logger.exception("%s %s failed.", scope["method"], quote(scope["path"]))
            await error_response(error)(scope, receive, send)


async def _answer(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code in (404, 405):
        detail = f"There is no {request.method} {quote(request.url.path)} here. GET /openapi.json lists what there is."
        return error_response(HTTPException(error.status_code, detail, error.headers))
    if status_of(error) >= 500 and isinstance(error, PageportError):
        request_id = getattr(request.state, "request_id", None)
        logger.error("%s %s (%s): %s", request.method, quote(request.url.path), request_id, error)
    return error_response(error)


async def _answer_invalid_argument(request: Request, error: Exception) -> Response:
    """Answer what FastAPI found wrong with an argument in the URL."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return error_response(InvalidParameter(f"{name}: {first['msg']}, not {quote(first.get('input'))}.", name))


async def _answer_nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


def _body(message: str, kind: str, param: str | None, code: str | None) -> dict[str, Any]:
    # A lone surrogate cannot be sent: show it escaped.
    sendable = message.encode("utf-8", "backslashreplace").decode()
    return {"error": {"message": sendable, "type": kind, "param": param, "code": code}}


def _path(location: tuple[int | str, ...]) -> str:
    """Write ``("messages", 0, "content", "str")`` as ``messages[0].content``: pydantic's form names are left out."""
    path = str(location[0])
    for part in location[1:]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "bool", "float"):
            path += f".{part}"
    return path
