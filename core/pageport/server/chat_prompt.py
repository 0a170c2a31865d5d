"""``render_prompt``: the text that a chat request puts before the model."""

from collections.abc import Mapping
from typing import Any

from pageport.errors import InvalidParameter
from pageport.server.protocol.chat import ChatMessage, ChatRequest, Tool
from pageport.server.service import Service
from pageport.text.chat import ChatTemplate

# OpenAI's newer name for what models were trained to know as the system's role.
ROLES = {"developer": "system"}
# Variables of every template that have request fields of their own.
OWN_FIELDS = ("messages", "tools", "self")


def render_prompt(service: Service, body: ChatRequest) -> str:
    """Apply the chat template.

    Raises:
        InvalidParameter: there is none, the request may not bring its own, or it refuses these messages.
    """
    template = chat_template(service, body)
    tools = [_tool(tool) for tool in body.tools or ()]
    return template.render([_message(message) for message in body.messages], tools or None, **_variables(body))


def message_text(message: ChatMessage) -> str:
    """Return a message's text, its parts joined as templates get them."""
    if isinstance(message.content, list):
        return "\n".join(part.text or part.refusal or "" for part in message.content)
    return message.content or ""


def chat_template(service: Service, body: ChatRequest) -> ChatTemplate:
    """Return the model's template, or the one that the request may bring.

    Raises:
        InvalidParameter: there is none, or the request may not bring its own.
    """
    if body.chat_template is not None:
        if not service.config.trust_request_chat_template:
            raise InvalidParameter(
                "This server does not run templates from requests. Leave chat_template out, "
                "or start it with --trust-request-chat-template.",
                "chat_template",
            )
        return ChatTemplate(body.chat_template, service.engine.tokenizer)
    if service.engine.chat_template is None:
        raise InvalidParameter(
            f"{service.model_name} has no chat template. Use /v1/completions with a prompt.", "messages"
        )
    return service.engine.chat_template


def _tool(tool: Tool) -> Mapping[str, Any]:
    return {"type": tool.type, **tool.model_dump(exclude_unset=True)}


def _message(message: ChatMessage) -> Mapping[str, Any]:
    plain = message.model_dump(exclude_none=True)
    plain["role"] = ROLES.get(message.role, message.role)
    return plain


def _variables(body: ChatRequest) -> dict[str, Any]:
    variables = dict(body.chat_template_kwargs or {})
    for name in OWN_FIELDS:
        if name in variables:
            raise InvalidParameter(f"chat_template_kwargs sets {name}. Leave it out.", "chat_template_kwargs")
    for name in ("add_generation_prompt", "continue_final_message", "documents"):
        value = getattr(body, name)
        if value is not None:
            variables[name] = value
    # A message that is to be continued is not followed by the beginning of another.
    variables.setdefault("add_generation_prompt", not variables.get("continue_final_message"))
    return variables
