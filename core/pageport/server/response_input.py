"""``chat_request``: what ``/v1/responses`` asks, in the terms of ``/v1/chat/completions``."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from pageport.errors import InvalidParameter, RequestError
from pageport.server.errors import invalid_body, quote
from pageport.server.protocol.chat import ChatMessage, ChatRequest
from pageport.server.protocol.common import GenerationFields, Payload, StreamOptions
from pageport.server.protocol.responses import InputItem, ResponseRequest
from pageport.server.service import not_supported

LOGPROBS = "message.output_text.logprobs"
# The sampling fields are those of the other endpoints, but for what an answer of one message has no place for.
NOT_HERE = ("n", "best_of", "max_tokens", "echo", "prompt_logprobs", "use_beam_search", "length_penalty")
OWN_NAMES = {
    "messages": "input",
    "prompt": "input",
    "response_format": "text",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
}
TEXT_PARTS = ("input_text", "output_text", "text")


def chat_request(body: ResponseRequest, conversation: Sequence[ChatMessage]) -> ChatRequest:
    """Return the chat request that continues ``conversation``.

    Raises:
        InvalidParameter: names a field of the chat request; ``own_field_names`` says which one here it comes from.
    """
    instructions = [ChatMessage(role="system", content=body.instructions)] if body.instructions else []
    shared = {name: getattr(body, name) for name in GenerationFields.model_fields}
    own: dict[str, Any] = {
        "stream": True,
        "stream_options": StreamOptions(include_usage=True),
        "max_completion_tokens": body.max_output_tokens,
        "logprobs": wants_logprobs(body),
        "top_logprobs": body.top_logprobs if wants_logprobs(body) else None,
        "response_format": _response_format(body),
        "chat_template_kwargs": body.chat_template_kwargs,
    }
    given = {name: value for fields in (shared, own) for name, value in fields.items() if value is not None}
    try:
        return ChatRequest(messages=[*instructions, *conversation], **given)
    except ValidationError as error:
        raise invalid_body(error) from None


def input_messages(body: ResponseRequest) -> list[ChatMessage]:
    """Return the input as messages.

    Raises:
        InvalidParameter: an item is no message, or a part of one no text.
    """
    if isinstance(body.input, str):
        return [ChatMessage(role="user", content=body.input)]
    return [_message(position, item) for position, item in enumerate(body.input)]


def wants_logprobs(body: ResponseRequest) -> bool:
    """Does the request ask for the logprobs of the answer's tokens?"""
    return LOGPROBS in (body.include or ()) or bool(body.top_logprobs)


@contextmanager
def own_field_names() -> Iterator[None]:
    """Make errors about the chat request name the field of this endpoint that the refused one comes from."""
    try:
        yield
    except RequestError as error:
        if error.parameter is not None:
            error.parameter = OWN_NAMES.get(error.parameter, error.parameter)
        raise


def check(body: ResponseRequest) -> None:
    """Refuse what would have to be ignored.

    Raises:
        InvalidParameter: names the field that cannot be honoured.
    """
    for name in NOT_HERE:
        value = getattr(body, name)
        if value and not (name in ("n", "best_of") and value == 1):
            instead = "Use max_output_tokens." if name == "max_tokens" else "Use /v1/chat/completions for it."
            raise InvalidParameter(f"{name} means nothing in /v1/responses. {instead}", name)
    for name in ("background", "prompt"):
        if getattr(body, name):
            raise not_supported(name)
    if body.truncation not in (None, "disabled"):
        raise not_supported("truncation", quote(body.truncation))
    if body.tools and body.tool_choice != "none":
        raise not_supported("tools", f"with tool_choice {quote(body.tool_choice or 'auto')}")
    if body.tool_choice not in (None, "none", "auto"):
        raise InvalidParameter("tool_choice asks for a tool, but there are no tools.", "tool_choice")
    for wanted in body.include or ():
        if wanted != LOGPROBS:
            raise not_supported("include", quote(wanted))


def _response_format(body: ResponseRequest) -> Payload | None:
    chosen = body.text.format if body.text is not None else None
    if not chosen or chosen.get("type") != "json_schema":
        return chosen
    return {"type": "json_schema", "json_schema": {name: value for name, value in chosen.items() if name != "type"}}


def _message(position: int, item: InputItem) -> ChatMessage:
    if item.type not in (None, "message"):
        raise InvalidParameter(f"input[{position}] is of type {quote(item.type)}; only messages are taken.", "input")
    if not item.role:
        raise InvalidParameter(f"input[{position}] has no role. Say who speaks: user, assistant, system.", "input")
    if not isinstance(item.content, list):
        return ChatMessage(role=item.role, content=item.content or "")
    texts = []
    for part in item.content:
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in (*TEXT_PARTS, "refusal") or text is None:
            raise InvalidParameter(
                f"input[{position}] has a part of type {quote(part.type)} and no text; this model takes text only.",
                "input",
            )
        texts.append(text)
    return ChatMessage(role=item.role, content="\n".join(texts))
