"""``chat_request``: what ``/v1/responses`` asks, in the terms of ``/v1/chat/completions``."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from pageport.errors import InvalidParameter, RequestError
from pageport.server.errors import invalid_body, quote
from pageport.server.protocol.chat import (
    ChatMessage,
    ChatRequest,
    FunctionDefinition,
    NamedFunction,
    NamedToolChoice,
    Tool,
)
from pageport.server.protocol.common import GenerationFields, Payload, StreamOptions
from pageport.server.protocol.responses import (
    FunctionTool,
    FunctionToolChoice,
    InputItem,
    InputPart,
    ResponseRequest,
)
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
        "tools": [_tool(tool) for tool in body.tools] if body.tools else None,
        "tool_choice": _tool_choice(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls,
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
        InvalidParameter: an item is of a kind that is not known here, or a part of one is no text.
    """
    if isinstance(body.input, str):
        return [ChatMessage(role="user", content=body.input)]
    messages: list[ChatMessage] = []
    for position, item in enumerate(body.input):
        match item.type:
            case None | "message":
                messages.append(_message(position, item))
            case "function_call":
                _append_call(messages, position, item)
            case "function_call_output":
                messages.append(_call_output(position, item))
            case "reasoning":
                pass  # models are not told again what they thought
            case _:
                raise InvalidParameter(
                    f"input[{position}] is of type {quote(item.type)}; what is taken are messages, function calls and "
                    "their outputs.",
                    "input",
                )
    return messages


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
    for wanted in body.include or ():
        if wanted != LOGPROBS:
            raise not_supported("include", quote(wanted))


def _response_format(body: ResponseRequest) -> Payload | None:
    chosen = body.text.format if body.text is not None else None
    if not chosen or chosen.get("type") != "json_schema":
        return chosen
    return {"type": "json_schema", "json_schema": {name: value for name, value in chosen.items() if name != "type"}}


def _tool(tool: FunctionTool) -> Tool:
    given = tool.model_dump(exclude_none=True, exclude={"type"})
    return Tool(type="function", function=FunctionDefinition(**given))


def _tool_choice(choice: str | FunctionToolChoice | None) -> str | NamedToolChoice | None:
    if not isinstance(choice, FunctionToolChoice):
        return choice
    return NamedToolChoice(type="function", function=NamedFunction(name=choice.name))


def _message(position: int, item: InputItem) -> ChatMessage:
    if not item.role:
        raise InvalidParameter(f"input[{position}] has no role. Say who speaks: user, assistant, system.", "input")
    return ChatMessage(role=item.role, content=_text(position, item.content))


def _append_call(messages: list[ChatMessage], position: int, item: InputItem) -> None:
    """Add a call to the assistant's message that it belongs to: the last one, or one of its own."""
    if not item.call_id or not item.name:
        raise InvalidParameter(f"input[{position}] is a function call without call_id or name. Give both.", "input")
    call = {
        "id": item.call_id,
        "type": "function",
        "function": {"name": item.name, "arguments": item.arguments or "{}"},
    }
    if not messages or messages[-1].role != "assistant":
        messages.append(ChatMessage(role="assistant", content=""))
    messages[-1].tool_calls = [*(messages[-1].tool_calls or ()), call]


def _call_output(position: int, item: InputItem) -> ChatMessage:
    if not item.call_id:
        raise InvalidParameter(
            f"input[{position}] is a function's output without call_id. Say which call it answers.", "input"
        )
    return ChatMessage(role="tool", tool_call_id=item.call_id, content=_text(position, item.output))


def _text(position: int, content: str | list[InputPart] | None) -> str:
    if not isinstance(content, list):
        return content or ""
    texts = []
    for part in content:
        text = part.refusal if part.type == "refusal" else part.text
        if part.type not in (*TEXT_PARTS, "refusal") or text is None:
            raise InvalidParameter(
                f"input[{position}] has a part of type {quote(part.type)} and no text; this model takes text only.",
                "input",
            )
        texts.append(text)
    return "\n".join(texts)
