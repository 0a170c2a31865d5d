"""``/tokenize`` and ``/detokenize``: requests, responses."""

from typing import Annotated, Any

from pydantic import BaseModel, Field, StrictInt

from pageport.server.protocol.body import RequestBody
from pageport.server.protocol.chat import MAX_TOOLS, ChatMessage, Tool
from pageport.server.protocol.common import Payload


class TokenizeRequest(RequestBody):
    """Body of ``POST /tokenize``: a prompt, or messages as ``/v1/chat/completions`` takes them."""

    prompt: str | None = None
    messages: Annotated[list[ChatMessage] | None, Field(min_length=1)] = None
    add_special_tokens: Annotated[
        bool | None, Field(description="Default: true for a prompt; false for messages, whose template writes them.")
    ] = None
    return_token_strs: bool | None = None

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    documents: list[Payload] | None = None
    tools: Annotated[list[Tool] | None, Field(max_length=MAX_TOOLS)] = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeResponse(BaseModel):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeRequest(RequestBody):
    """Body of ``POST /detokenize``."""

    tokens: list[StrictInt]


class DetokenizeResponse(BaseModel):
    prompt: str
